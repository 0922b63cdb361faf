// One scan: what is known of it, and its way into the picture.
import {
  askBytes,
  askJson,
  badge,
  byId,
  forgetScan,
  page,
  pathOf,
  pathsOfMap,
  rounded,
  scanChanged,
  tell,
  withLayer,
} from "./page.js";
import { forgetPlace, otherMap, showOther, showOverlay, started } from "./controls.js";
import { markRow, progressOf } from "./list.js";
import { fillJudge } from "./rating.js";
import { listMapOf } from "./structures.js";

// While a user pages quickly, scans are shown at half resolution; the full one follows
// after this pause.
const PAUSE_MS = 250;

export const scanTab = {
  id: "picture",
  title: "Picture",
  column: "middle",
  fill: fillScan,
};

// The detail that the page has been filled with.
let filled = null;

// Fill in the texts above and below the picture; a remark that is being written stays.
function fillScan() {
  const { detail, study } = page;
  if (detail && detail === filled) return;
  filled = detail;
  if (!detail) {
    for (const id of ["entropy", "mask", "flip"]) byId(id).disabled = true;
    byId("judge").replaceChildren();
    return;
  }
  const reasons = [
    // In place of a picture there is the reason why there is none.
    page.items[page.number].there && detail.why,
    correctionOf(detail),
    ...(detail.result.notes || []),
    ...(detail.unreadable || []),
  ];
  byId("why").textContent = reasons.filter(Boolean).join("; ");
  for (const kind of ["entropy", "mask"]) {
    byId(kind).disabled = !detail[kind];
    byId(kind).hidden = !detail[kind] && page.overlay !== kind;
  }
  const other = otherMap();
  byId("flip").disabled = !other;
  byId("flip").hidden = !study.against && !other;
  byId("flip").textContent = other?.name || study.against;
  if (!study.service) fillJudge(byId("judge"), "", "scan");
}

// Describe who has corrected a scan.
function correctionOf({ correction }) {
  if (!correction) return "";
  if (!correction.by) return "corrected by another program";
  const text = `corrected by ${correction.by}, ${rounded(correction.voxels)} voxels`;
  return correction.stale ? `${text}; the result has changed since` : text;
}

export function nameScan(item) {
  byId("name").replaceChildren(item.name, " ", badge(item.grade));
}

// Nothing of the scan before is left under the name of the next one, whatever becomes of that.
function clearScan() {
  page.detail = null;
  page.counts = null;
  page.whole = false;
  document.body.classList.add("empty");
  forgetPlace();
  page.picture?.clear();
  scanChanged();
}

// With a place in mm the cross-hair begins there.
export async function open(number, at = null) {
  // A stroke whose button is still held becomes part of the draft.
  page.picture?.nv?.brush.end();
  forgetScan();
  const { turn } = page;
  page.number = number;
  const item = page.items[number];
  markRow(item);
  item.row.scrollIntoView({ block: "nearest" });
  nameScan(item);
  byId("why").textContent = item.there ? item.why : "";
  tell("");
  listMapOf(item);
  clearScan();
  try {
    await load(item, at, () => turn !== page.turn);
  } catch (error) {
    if (turn === page.turn) tell(error.message);
  }
}

// Ask for a scan and show what comes, the coarse before the fine, until it is an old one.
async function load(item, at, isOld) {
  const path = pathOf(item);
  const map = pathsOfMap(item);
  const { number } = page;
  const shown = (step) => {
    globalThis.trinatShown = { number, step, time: performance.now() };
  };
  const detailed = askJson(withLayer(item, path));
  let coarse;
  let starting;
  if (item.there) {
    coarse = Promise.all([
      askBytes(`${path}/scan?step=2`),
      askBytes(`${map.labels}?step=2`),
    ]);
    // If the detail fails too, its error is reported instead of this one.
    coarse.catch(() => {});
    starting = started();
  }
  const detail = await detailed;
  if (isOld()) return;
  page.detail = detail;
  scanChanged();
  if (!item.there) {
    tell(item.why || progressOf(item) || "This scan has no result.");
    if (!detail.scan) return;
    const picture = await started();
    const alone = await askBytes(`${path}/scan`);
    if (isOld()) return;
    page.whole = true;
    await picture.showAlone(alone);
    if (isOld()) return;
    document.body.classList.remove("empty");
    shown("scan");
    return;
  }

  tell("loading", { busy: true });
  const picture = await starting;
  const [scan, labels] = await coarse;
  if (isOld()) return;
  await picture.show(scan, new Uint8Array(labels), { keep: false });
  if (isOld()) return;
  picture.move(at);
  document.body.classList.remove("empty");
  tell(detail.scan ? "" : whyNoScan());
  shown(2);

  await new Promise((done) => setTimeout(done, PAUSE_MS));
  if (isOld()) return;
  const [whole, all] = await Promise.all([
    askBytes(`${path}/scan`),
    askBytes(map.labels),
  ]);
  if (isOld()) return;
  await picture.show(whole, new Uint8Array(all));
  if (isOld()) return;
  page.whole = true;
  picture.move(picture.at());
  page.counts = picture.counts();
  scanChanged();
  if (page.structure) picture.select(page.structure);
  if (page.overlay) await showOverlay(page.overlay);
  if (picture.state.flipped) await showOther(true);
  shown(1);

  const surfaces = await askBytes(map.surfaces);
  if (isOld()) return;
  await picture.setSurfaces(surfaces);
  shown(0);
}

function whyNoScan() {
  if (page.study.service) return "A DICOM series is shown by its labels alone.";
  return "The scan was not found, or is another one now: name its folder with --images";
}

// The first scan that has a result, else the first one.
export async function openFirst() {
  if (page.items.length) {
    const first = page.items.findIndex((item) => item.there);
    await open(Math.max(first, 0));
    return;
  }
  document.body.classList.add("empty");
  page.number = -1;
  page.detail = null;
  byId("name").textContent = "";
  scanChanged();
  tell("No scans here: give the --out folder of trinat predict.");
}
