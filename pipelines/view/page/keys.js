// The keys of the page, and what each does.
import { byId, make, page } from "./page.js";
import {
  changeOpacity,
  savePicture,
  setLayout,
  switchSides,
  toggleOther,
  toggleOutline,
  toggleOverlay,
  toggleShown,
} from "./controls.js";
import {
  isCorrecting,
  pickUnderCrosshair,
  redo,
  resizeBrush,
  save,
  setTool,
  toggleBall,
  toggleCorrecting,
  toggleWithin,
  undo,
} from "./correct.js";
import { neighbour } from "./list.js";
import { toggleParcels } from "./parcels.js";
import { rate } from "./rating.js";
import { open } from "./scan.js";
import { isJudged, select } from "./structures.js";
import { showTab } from "./tabs.js";

const STEP_OF_OPACITY = 0.1;
// While labels are corrected.
const BRUSH_KEYS = [
  { key: "Q", text: "paint", act: () => setTool("paint") },
  { key: "W", text: "erase", act: () => setTool("erase") },
  { key: "L", text: "fill an outline", act: () => setTool("fill") },
  { key: "G", text: "replace a connected part", act: () => setTool("replace") },
  { key: "Y", text: "move the cross-hair, paint nothing", act: () => setTool("move") },
  { key: "I", text: "paint what is under the cross-hair", act: pickUnderCrosshair },
  {
    key: "J",
    text: "paint over that structure only, or over anything",
    act: toggleWithin,
  },
  { key: "T", text: "brush on a slice, or in 3D", act: toggleBall },
  { key: ",", text: "smaller brush", act: () => resizeBrush(-1) },
  { key: ".", text: "larger brush", act: () => resizeBrush(1) },
  { key: "Z", text: "undo (Shift: redo)", act: undo },
  { key: "Ctrl+S", text: "save the correction" },
];
// Each as the help shows it, what it does in words, and the function; `actOf` knows the others.
const KEYS = [
  { key: "N", text: "next scan", act: () => go(1) },
  { key: "B", text: "scan before", act: () => go(-1) },
  { key: "1", text: "pass", act: () => rate("", "pass") },
  { key: "2", text: "look", act: () => rate("", "look") },
  {
    key: "3",
    text: "reject (Shift: the chosen structure)",
    act: () => rate("", "reject"),
  },
  { key: "M", text: "write a remark", act: writeRemark },
  { key: "/", text: "find a structure", act: findStructure },
  { key: "[", text: "labels fainter", act: () => changeOpacity(-STEP_OF_OPACITY) },
  { key: "]", text: "labels stronger", act: () => changeOpacity(STEP_OF_OPACITY) },
  { key: "H", text: "show or hide labels", act: toggleShown },
  { key: "O", text: "outline or fill", act: toggleOutline },
  { key: "E", text: "entropy", act: () => toggleOverlay("entropy") },
  { key: "K", text: "outline of the brain mask", act: () => toggleOverlay("mask") },
  { key: "F", text: "other label map", act: toggleOther },
  { key: "U", text: "parcels of the cortex, or structures", act: toggleParcels },
  { key: "R", text: "the person's left on the other side", act: switchSides },
  { key: "P", text: "save what is seen as a picture", act: savePicture },
  { key: "V", text: "all views", act: () => setLayout("all") },
  { key: "A", text: "axial plane", act: () => setLayout("axial") },
  { key: "C", text: "coronal plane", act: () => setLayout("coronal") },
  { key: "S", text: "sagittal plane", act: () => setLayout("sagittal") },
  { key: "D", text: "surfaces", act: () => setLayout("solid") },
  { key: "X", text: "correct the labels, or stop", act: toggleCorrecting },
  ...BRUSH_KEYS,
  { key: "← →", text: "cross-hair left, right" },
  { key: "↑ ↓", text: "cross-hair to the front, back" },
  { key: "PgUp PgDn", text: "cross-hair up, down" },
  { key: "Esc", text: "leave a field, drop the chosen structure" },
  { key: "?", text: "these keys", act: () => byId("help").showModal() },
];
// Keys that rate: nobody rates in a service.
const RATERS_KEYS = ["1", "2", "3", "M"];
// Fields that take all keys.
const TYPED_IN =
  "input[type=search], input[type=text], input[type=number], #drop select";
// Axis and direction in which a key moves the cross-hair.
const ARROWS = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [1, 1],
  ArrowDown: [1, -1],
  PageUp: [2, 1],
  PageDown: [2, -1],
};

export function startKeys() {
  for (const { key, text } of KEYS) {
    if (page.study.service && RATERS_KEYS.includes(key)) continue;
    const name = make("dt", {}, make("kbd", {}, key));
    byId("keys").append(name, make("dd", {}, text));
  }
  // Before NiiVue, which has keys of its own.
  globalThis.addEventListener("keydown", onKey, true);
}

// Open the scan that is so many rows further in the list.
export function go(by) {
  const number = neighbour(by);
  if (number !== undefined && number !== page.number) open(number);
}

// Go to the remark on what was rated last.
function writeRemark() {
  const card = page.rated ? "#structure-card" : "#judge";
  /** @type {any} */
  const field = document.querySelector(`${card} .remark:not(:disabled)`) ||
    document.querySelector(".remark:not(:disabled)");
  field?.focus();
}

function findStructure() {
  showTab("structures");
  byId("structure-search").focus();
}

function onKey(event) {
  if (event.altKey) return;
  if (event.ctrlKey || event.metaKey) {
    onControlKey(event);
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const { key, target } = event;
  if (key === "Escape") {
    if (target.matches("input, select")) target.blur();
    else select(0);
    return;
  }
  // Keys typed in a field, and arrows in a slider or list, belong to it. The lists of the brush
  // leave letters to the page, so that its tools can be changed after a structure was chosen.
  if (target.matches(TYPED_IN)) return;
  if (target.matches("input, select") && key in ARROWS) return;
  const act = actOf(event);
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}

// Usual keys for undo, redo and save.
function onControlKey(event) {
  const { key, shiftKey } = event;
  const acts = { z: shiftKey ? redo : undo, y: redo, s: save };
  const act = acts[key.toLowerCase()];
  if (!act || !isCorrecting()) return;
  event.preventDefault();
  act();
}

// Return the action of a key; undefined without one.
function actOf(event) {
  const { code, key, shiftKey, target } = event;
  if (["ArrowUp", "ArrowDown"].includes(key) && target.closest("aside ol")) {
    return () => moveInList(target, key === "ArrowDown" ? 1 : -1);
  }
  const digit = /^Digit([123])$/.exec(code);
  // French keyboards need Shift for the digit itself, which rates the scan.
  if (digit && shiftKey && key !== digit[1]) {
    const structure = page.structures[page.structure - 1];
    const verdict = page.study.verdicts[Number(digit[1]) - 1];
    if (!structure || !isJudged(structure)) return undefined;
    return () => rate(structure.name, verdict);
  }
  if (key in ARROWS) return () => page.picture?.step(...ARROWS[key]);
  if (isCorrecting()) {
    if (key.toUpperCase() === "Z" && shiftKey) return redo;
  } else if (BRUSH_KEYS.some((each) => each.key === key.toUpperCase())) {
    return undefined;
  }
  return KEYS.find((each) => each.key === key.toUpperCase())?.act;
}

// From a row of a list to the next one that is shown.
function moveInList(target, by) {
  const row = target.closest("li");
  const rows = [...row.parentElement.children].filter((each) => !each.hidden);
  const next = rows[rows.indexOf(row) + by];
  next?.querySelector(".scan, .structure").focus();
}
