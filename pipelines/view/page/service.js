// A service: scans are dropped, followed and deleted, and results taken; and a model is learnt from
// what was corrected, as a job of its queue.
import { ask, askJson, byId, forgetScan, make, page, tell, watchScan } from "./page.js";
import { started } from "./controls.js";
import { fillList, markRow, progressOf } from "./list.js";
import { nameScan, open, openFirst } from "./scan.js";
import { fillRows } from "./structures.js";
import { showTab } from "./tabs.js";

const AT = "v1/segmentations";
// The files of a result, and the output that is asked for to have them; "" if they are always there.
const FILES = {
  "labels.nii.gz": "",
  "brainmask.nii.gz": "",
  "volumes.tsv": "",
  "parcels.nii.gz": "parcels",
  "parcels.tsv": "parcels",
  "qc.png": "",
  "labels.mgz": "mgz",
  "seg.dcm": "dicom-seg",
  "page.html": "page",
};
const REFRESH_MS = 1000;
const RETRY_MS = 5000;
const LEARNING_AT = "v1/learning";
const MODEL = "own.zip";
const LEARNING_REFRESH_MS = 2000;
// Names of files stay on this page: the server gets them to see the ending, and keeps none.
const sent = new Map();
// Each refresh has a number: an answer that an older one waited for is not wanted any more.
let refreshing = 0;
let timer = 0;
let learningTimer = 0;

export function startService() {
  byId("drop").hidden = false;
  byId("judge").hidden = true;
  byId("where").textContent = "Scans and results are deleted after a while.";
  byId("file").addEventListener("change", async (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    send(await page.scansOf(files));
  });
  const pageWanted = byId("drop").querySelector(".output[value=page]");
  pageWanted.addEventListener("change", () => {
    byId("participant").hidden = !(page.study.norms && pageWanted.checked);
  });
  // On the whole page: beside the field, a file that is dropped would be opened in place of it.
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.body.addEventListener(name, (event) => {
      event.preventDefault();
      const isOver = name === "dragenter" || name === "dragover";
      byId("drop").classList.toggle("over", isOver);
    });
  }
  document.body.addEventListener("drop", async (event) => {
    const files = await page.filesIn(event.dataTransfer);
    send(await page.scansOf(files));
  });
  page.refresh = () => refresh().catch(lost);
  watchScan(fillFiles);
  if (!page.items.length) showTab("scans");
  // The picture is ready before the first scan comes; where none can be drawn, that scan says so.
  started().catch(() => {});
  if (page.study.corrector) startLearning();
  page.refresh();
}

// Scans have the names of their files as long as this page is open.
export function nameScans(scans) {
  for (const scan of scans) scan.name = sent.get(scan.id) || `Scan ${scan.number}`;
}

function fillFiles() {
  const item = page.items[page.number];
  byId("files").hidden = !item;
  if (!item) return;
  const links = [];
  for (const { name, href } of item.links || linksOf(item)) {
    links.push(make("a", { href, download: name }, name));
  }
  const facts = { id: "delete", class: "chip", onclick: () => remove(item) };
  byId("files").replaceChildren(...links, make("button", facts, "Delete"));
}

// Return the addresses of a scan's files on the server.
function linksOf(item) {
  const found = [];
  // Parcels are made of all scans or of none, and not asked for.
  const made = item.layers?.includes("parcels")
    ? [...item.outputs, "parcels"]
    : item.outputs;
  for (const [name, output] of Object.entries(FILES)) {
    if (item.there && (!output || made.includes(output))) {
      found.push({ name, href: `${AT}/${item.id}/${name}` });
    }
  }
  if (page.detail?.correction) {
    const name = "corrected.nii.gz";
    found.push({ name, href: `${AT}/${item.id}/${name}` });
  }
  return found;
}

async function remove(item) {
  const question = `Delete ${item.name} with its results? They cannot be restored.`;
  if (!globalThis.confirm(question)) return;
  forgetScan();
  try {
    await ask(`${AT}/${item.id}`, { method: "DELETE" });
  } catch (error) {
    tell(error.message);
  }
  await refresh();
}

// Age and sex as they were typed, for norms; they are of one participant, and so of one scan.
function takeParticipant() {
  const participant = {};
  if (byId("participant").hidden) return participant;
  for (const name of ["age", "sex"]) {
    if (byId(name).value) participant[name] = byId(name).value;
    byId(name).value = "";
  }
  return participant;
}

// Each scan is a list of files.
async function send(scans) {
  byId("refused").replaceChildren();
  const participant = takeParticipant();
  if (scans.length > 1 && Object.keys(participant).length) {
    const reason =
      "Age and sex belong to one participant: send one scan, or leave them out.";
    byId("refused").append(make("li", {}, reason));
    return;
  }
  for (const files of scans) {
    const [file] = files;
    const form = new FormData();
    for (const each of files) form.append("file", each);
    for (const box of byId("drop").querySelectorAll(".output:checked")) {
      form.append("outputs", box.value);
    }
    for (const [name, value] of Object.entries(participant)) form.append(name, value);
    const line = make("li", {}, `${file.name}: sending`);
    byId("refused").append(line);
    try {
      const job = await askJson(AT, { method: "POST", body: form });
      sent.set(job.id, job.name || file.name);
      line.remove();
      showTab("picture");
      await refresh(job.id);
    } catch (error) {
      line.textContent = `${file.name}: ${error.message}`;
    }
  }
}

const hasEnded = (item) => ["done", "failed"].includes(item.state);

// The list as it is now. What is looked at stays, unless it has ended or is gone.
async function refresh(id) {
  refreshing += 1;
  const turn = refreshing;
  const before = page.items[page.number];
  const study = await askJson("v1/study");
  if (turn !== refreshing) return;
  // Rows of the list stay: they are of the same structures, or of the same layer.
  const { layers } = page.study;
  const shown = Object.keys(layers).find((layer) => page.structures === layers[layer]);
  const list = shown ? study.layers[shown] : study.structures;
  list.forEach((structure, n) => {
    structure.row = page.structures[n].row;
  });
  nameScans(study.scans);
  page.study = study;
  page.structures = list;
  fillList();
  const wanted = id || before?.id;
  page.number = page.items.findIndex((item) => item.id === wanted);
  const item = page.items[page.number];
  if (!item) {
    await openFirst();
  } else if (id || hasEnded(before) !== hasEnded(item) || before.scan !== item.scan) {
    await open(page.number);
  } else {
    markRow(item);
    nameScan(item);
    fillRows();
    if (!hasEnded(item)) tell(progressOf(item));
  }
  clearTimeout(timer);
  if (!page.items.every(hasEnded)) {
    timer = setTimeout(page.refresh, REFRESH_MS);
  }
}

function lost() {
  tell("the server does not answer");
  timer = setTimeout(page.refresh, RETRY_MS);
}

function startLearning() {
  byId("learn").addEventListener("click", () => followLearning({ method: "POST" }));
  // There is something to learn once a scan is corrected.
  watchScan(() => {
    if (page.detail?.correction) byId("learning").hidden = false;
  });
  followLearning();
}

// Ask how far the job is, or for a new one, until it has ended.
async function followLearning(options) {
  clearTimeout(learningTimer);
  let job;
  try {
    job = await askJson(LEARNING_AT, options);
  } catch (error) {
    sayOfLearning(error.message);
    return;
  }
  if (!job) return;
  byId("learning").hidden = false;
  const isOver = ["done", "failed"].includes(job.state);
  byId("learn").disabled = !isOver;
  if (!isOver) {
    const waits = "waits for the scans before it";
    sayOfLearning(job.state === "queued" ? waits : job.said || "at work");
    learningTimer = setTimeout(followLearning, LEARNING_REFRESH_MS);
  } else if (job.state === "done") {
    const model = make(
      "a",
      { href: `${LEARNING_AT}/${MODEL}`, download: MODEL },
      MODEL,
    );
    sayOfLearning(`${job.lines.at(-1)} `, model);
  } else {
    sayOfLearning(`no model: ${job.reason}`);
  }
}

function sayOfLearning(...what) {
  byId("learning-state").replaceChildren(...what);
}
