// The page of a site that `trinat export --format web` wrote: that of a service, answered by the
// page itself.
import { answerBy, byId, make, page, tell } from "../../view/page/page.js";
import { scansOf } from "./read.js";
import { Site } from "./site.js";

const HOW = "NIfTI, MGZ, or a folder of DICOM files. Nothing leaves this machine.";
const stepsFor = (scan) => [
  `Drop a ${scan} of a head anywhere on this page, or choose a file: NIfTI or MGZ. DICOM files are dropped as a folder.`,
  "It is segmented here, on this machine, by this browser. Nothing is uploaded.",
  "Look at the structures and their volumes, and download the label map.",
];

async function main() {
  const models = [];
  for (const name of await fetchJson("models.json")) {
    models.push(await fetchJson(`models/${name}/settings.json`));
  }
  const asked = new URLSearchParams(globalThis.location.search);
  const site = new Site(models, asked.get("device") ?? "");
  globalThis.trinatSite = site;
  site.changed = () => page.refresh();
  answerBy((path, options) => Promise.resolve(site.ask(path, options)));
  const isOfT1 = models.every(({ contrast }) => contrast === "T1");
  byId("how").textContent = isOfT1 ? `T1-weighted: ${HOW}` : HOW;
  const steps = stepsFor(isOfT1 ? "T1-weighted scan" : "scan");
  byId("steps").replaceChildren(...steps.map((step) => make("li", {}, step)));
  for (const box of document.querySelectorAll(".output")) {
    box.closest("p").hidden = true;
  }
  if (models.length > 1) byId("how").after(chooser(site));
  page.filesIn = filesIn;
  page.scansOf = scansOf;
  // DICOM files may have any name.
  byId("file").removeAttribute("accept");
  if (!globalThis.crossOriginIsolated) {
    byId("how").textContent +=
      " On one thread: the server sends no COOP and COEP headers.";
  }
  await import("../../view/page/view.js");
  const where = "Scans and results are in this page alone, until it is closed.";
  const tellWhere = () => {
    byId("where").textContent = site.threads ? `${where} ${runsOn(site)}` : where;
  };
  site.ready = tellWhere;
  tellWhere();
}

function runsOn({ isOnGraphics, threads }) {
  if (isOnGraphics) return "Networks run on the graphics card.";
  const count = threads === 1 ? "one thread" : `${threads} threads`;
  return `Networks run on ${count} of the processor.`;
}

async function fetchJson(path) {
  const answer = await fetch(path);
  return answer.json();
}

// Selector of the model for scans that are dropped from now on.
function chooser(site) {
  const choose = (event) => site.choose(event.target.value);
  const options = site.models.map(({ model, contrast }) => {
    const scans = contrast === "any" ? "any contrast" : "T1-weighted scans";
    return make("option", { value: model }, `${model}: ${scans}`);
  });
  const select = make("select", { id: "model", onchange: choose }, ...options);
  return make("p", {}, make("label", {}, "Model ", select));
}

/**
 * The files that were dropped, those in folders among them.
 * @param {DataTransfer} transfer
 * @returns {Promise<File[]>}
 */
async function filesIn(transfer) {
  // Entries are there only until the first pause.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry());
  const found = [];
  for (const entry of entries) {
    if (entry) found.push(...await filesOfEntry(entry));
  }
  return found;
}

async function filesOfEntry(entry) {
  if (entry.isFile) {
    return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  }
  const reader = entry.createReader();
  const found = [];
  while (true) {
    // A reader gives a hundred entries at a time, and none at its end.
    const some = await new Promise((resolve, reject) =>
      reader.readEntries(resolve, reject)
    );
    if (!some.length) return found;
    for (const inner of some) found.push(...await filesOfEntry(inner));
  }
}

main().catch((error) => tell(error.message));
