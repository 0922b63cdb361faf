// Segments scans beside the page, one at a time: files in, progress and results out.
import { Model } from "./model.js";
import { caseOf, packed, readScan } from "./read.js";
import { writeNifti } from "./nifti.js";
import { totalBrainMm3 } from "./anatomy.js";
import { tissueContrast } from "./brightness.js";
import { restoreMask } from "./conform.js";
import { Evidence } from "./evidence.js";
import { compare, hasGraphics } from "./graphics.js";
import { findInside, measure } from "./measuring.js";
import { gradeBy, meanAgreement } from "./quality.js";
import { upright } from "./resample.js";
import { segment } from "./segment.js";
import { surfacesOf } from "./surfaces.js";
import { outlineOf, toShow } from "./show.js";

/** @typedef {import("./model.js").Settings} Settings */

// The published runtime is not one of our modules, so it is not type-checked. The second
// file supports graphics cards.
const RUNTIME = "./onnxruntime/ort.wasm.min.mjs";
const RUNTIME_OF_GRAPHICS = "./onnxruntime/ort.jspi.min.mjs";
// More threads do not pay for slices as small as these.
const MOST_THREADS = 8;
// The loaded model of the site, and the device of its networks: "cpu", "webgpu", or null
// for the faster one.
const ASKED = new URLSearchParams(self.location.search);
const MODEL = ASKED.get("model");
const DEVICE = ASKED.get("device");
const WITHOUT_GRAPHICS = "open the page with ?device=cpu at the end of its address";
// Text of an unknown value in tables.
const NOT_KNOWN = "n/a";

// The scan that is at work, or that was given up.
let current = null;

self.addEventListener("message", ({ data }) => {
  if (data.kind === "cancel") {
    if (current) current.isCancelled = true;
    return;
  }
  work(data).catch((error) => {
    self.postMessage({ kind: "failed", reason: sentenceOf(error) });
  });
});

// The model is loaded with the page, so that nothing has to be asked for later.
const loading = load();
// An error is reported with the first scan.
loading.catch(() => {});

async function load() {
  const isOffered = DEVICE !== "cpu" && (await hasGraphics(DEVICE === "webgpu"));
  const ort = await import(isOffered ? RUNTIME_OF_GRAPHICS : RUNTIME);
  // Threads need memory that they share, which a page has only with the headers of `trinat web`.
  const most = Math.min(navigator.hardwareConcurrency, MOST_THREADS);
  ort.env.wasm.numThreads = self.crossOriginIsolated ? most : 1;
  // Kept until it is known where networks run: they may be made twice.
  const kept = new Map();
  const read = async (name) => {
    if (!kept.has(name)) kept.set(name, await fetchFile(name));
    return kept.get(name);
  };
  const ofGraphics = isOffered ? await onGraphics(ort, read) : null;
  const model = ofGraphics ?? (await Model.load(ort, read, false));
  const { isOnGraphics } = model;
  self.postMessage({ kind: "ready", threads: ort.env.wasm.numThreads, isOnGraphics });
  return model;
}

// The model with its networks on the graphics card; null where the processor is as good.
async function onGraphics(ort, read) {
  try {
    const model = await Model.load(ort, read, true);
    const { isSame, isSooner } = await compare(ort, model, read);
    if (isSame && (isSooner || DEVICE === "webgpu")) return model;
  } catch {
    // Whatever a graphics card cannot do, the processor can.
  }
  return null;
}

async function fetchFile(name) {
  const answer = await fetch(new URL(`../../models/${MODEL}/${name}`, import.meta.url));
  if (!answer.ok) throw new Error(`the server answered ${answer.status} for ${name}`);
  return answer.arrayBuffer();
}

/** @param {{ files: File[], anyContrast: boolean }} asked */
async function work({ files, anyContrast }) {
  const job = { isCancelled: false };
  current = job;
  const say = async (stage, share) => {
    self.postMessage({ kind: "stage", stage, share });
    // A pause, in which the message that gives it up is heard.
    await new Promise((resolve) => setTimeout(resolve));
    if (job.isCancelled) throw new Error("given up");
  };
  const scan = await readScan(files, anyContrast);
  const picture = toShow(scan);
  const values = upright(scan);
  // Given away, not copied: a copy would keep the page from answering.
  const transfer = [picture.data.buffer, values.data.buffer];
  self.postMessage({ kind: "shown", scan: picture, values }, { transfer });
  const model = await loading;
  const found = await segment(scan, model, say).catch((error) => {
    if (!model.isOnGraphics || job.isCancelled) throw error;
    throw new Error(
      `the graphics card failed: ${sentenceOf(error)}; ${WITHOUT_GRAPHICS}`,
    );
  });
  await say("grade", 0);
  const { settings } = model;
  const numberOf = settings.classes.map(({ number }) => number);
  const numbers = new Int16Array(found.indices.length);
  for (let at = 0; at < numbers.length; at++) numbers[at] = numberOf[found.indices[at]];
  const { image, classes } = found.working;
  const inside = findInside(classes, image, settings);
  const mask = restoreMask(inside, image, scan);
  const result = resultOf(scan, settings, found, inside, mask);
  const shown = upright({ ...scan, data: found.indices });
  const outline = outlineOf(upright({ ...scan, data: mask }));
  const surfaces = surfacesOf(shown, settings.classes.length);
  const asFile = (data) => packed(writeNifti({ ...scan, data }, { labels: true }));
  const said = {
    kind: "done",
    shown: shown.data,
    outline: outline.data,
    surfaces,
    files: {
      "labels.nii.gz": await asFile(numbers),
      "brainmask.nii.gz": await asFile(mask),
      "volumes.tsv": tableOf(caseOf(files), result),
    },
    result,
  };
  const buffers = [shown.data.buffer, outline.data.buffer, surfaces];
  self.postMessage(said, { transfer: buffers });
}

/**
 * Return a result in the form of the ledger of `trinat predict`.
 * @returns {import("../../view/page/record.d.ts").ScanResult}
 */
function resultOf(scan, settings, found, inside, mask) {
  const { volumesMm3, agreement, working } = found;
  const evidence = new Evidence({ settings, working, scan, volumesMm3, agreement });
  const grade = gradeBy(evidence);
  const measured = measure(evidence, inside, mask);
  /** @type {Record<string, number | null>} */
  const ofStructures = {};
  settings.classes.forEach(({ name }, index) => {
    const value = agreement?.[index];
    if (volumesMm3.has(name)) {
      ofStructures[name] = Number.isFinite(value) ? value : null;
    }
  });
  const notes = [...(scan.notes ?? []), ...found.remarks, measured.note];
  return {
    model: settings.model,
    grade: grade.name,
    reasons: grade.reasons,
    structure_grades: grade.structures,
    notes: notes.filter(Boolean),
    total_brain_mm3: totalBrainMm3(settings, volumesMm3),
    volumes_mm3: Object.fromEntries(volumesMm3),
    measures_mm3: measured.mm3,
    tissue_contrast: tissueContrast(evidence),
    mean_agreement: meanAgreement(evidence),
    agreement: ofStructures,
  };
}

// Text that ends no cell, and is no formula to a spreadsheet.
function asCell(text) {
  const line = text.replaceAll(/[\t\r\n]/g, " ");
  return /^[=+\-@]/.test(line) ? `'${line}` : line;
}

// A row as volumes.tsv of `trinat predict` has it, and what qc.tsv says there.
function tableOf(name, result) {
  const { total_brain_mm3: brain, volumes_mm3: volumes } = result;
  const columns = { case: asCell(name), "total_brain_mm3": brain.toFixed(3) };
  for (const [each, mm3] of Object.entries({ ...result.measures_mm3, ...volumes })) {
    columns[`${each}_mm3`] = mm3 === null ? NOT_KNOWN : mm3.toFixed(3);
  }
  for (const [each, mm3] of Object.entries(volumes)) {
    columns[`${each}_share`] = brain ? (mm3 / brain).toFixed(6) : NOT_KNOWN;
  }
  columns.grade = result.grade;
  columns.reasons = asCell(result.reasons.join("; "));
  columns.notes = asCell(result.notes.join("; "));
  const lines = [Object.keys(columns), Object.values(columns)];
  const text = lines.map((words) => `${words.join("\t")}\n`).join("");
  return new Blob([text], { type: "text/tab-separated-values" });
}

function sentenceOf(error) {
  if (!(error instanceof Error)) return String(error);
  const isMemory = error instanceof RangeError || /memory/i.test(error.message);
  if (isMemory) {
    return "not enough memory for this scan: close other pages, or use trinat predict";
  }
  return error.message;
}
