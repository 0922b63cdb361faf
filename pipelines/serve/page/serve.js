"use strict";
// Names of files stay on this page: the server gets them to see the ending, and keeps none.
const drop = document.getElementById("drop"), scans = document.getElementById("scans");
const said = document.getElementById("said");
const AT = "/v1/segmentations";
const FILES = { "labels.nii.gz": "", "volumes.tsv": "", "labels.mgz": "mgz", "seg.dcm": "dicom-seg" };

function made(parent, tag, text = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}

async function reason(answer) {
  try { return (await answer.json()).reason; } catch { return `status ${answer.status}`; }
}

async function send(file) {
  const form = new FormData();
  form.append("file", file);
  for (const box of document.querySelectorAll(".output:checked")) form.append("outputs", box.value);
  const item = made(scans, "li", file.name);
  const state = made(item, "div", "sending");
  let answer;
  try { answer = await fetch(AT, { method: "POST", body: form }); }
  catch { state.textContent = "the server does not answer"; return; }
  if (!answer.ok) { state.textContent = await reason(answer); return; }
  watch(await answer.json(), item, state);
}

function watch(job, item, state) {
  const bar = made(item, "progress"), at = `${AT}/${job.id}`;
  const remove = made(item, "button", "delete");
  const source = new EventSource(`${at}/events`);
  remove.onclick = async () => { source.close(); await fetch(at, { method: "DELETE" }); item.remove(); };
  source.onmessage = (event) => {
    const now = JSON.parse(event.data);
    bar.value = now.progress;
    const place = now.place ? `, place ${now.place}` : "";
    state.textContent = `${now.state}${place} ${now.grade} ${[now.reason, ...now.notes].filter(Boolean).join("; ")}`;
    if (now.state === "done") show(now, item, at);
    if (now.state === "done" || now.state === "failed") { source.close(); bar.remove(); }
  };
}

function show(job, item, at) {
  for (const [name, asked] of Object.entries(FILES)) {
    if (asked && !job.outputs.includes(asked)) continue;
    const link = made(item, "a", name);
    link.href = `${at}/${name}`;
    link.download = name;
  }
  const picture = made(item, "img");
  picture.alt = "labels over slices of the scan";
  picture.src = `${at}/qc.png`;
}

async function sendAll(files) {
  said.textContent = "";
  for (const file of files) await send(file);
}

document.getElementById("file").onchange = (event) => { sendAll([...event.target.files]); event.target.value = ""; };
for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
drop.addEventListener("drop", (event) => sendAll([...event.dataTransfer.files]));
