// The picture on the page: what lies over it, where one is in it, and the controls below it.
import {
  askBytes,
  askJson,
  byId,
  correctedLayerOf,
  layerOf,
  make,
  page,
  pathOf,
  press,
  shortName,
  tell,
  unlessUnwanted,
} from "./page.js";
import { Picture } from "./picture.js";

const LAYOUTS = {
  all: "All",
  axial: "A",
  coronal: "C",
  sagittal: "S",
  solid: "3D",
};
const SIDES_KEY = "trinat-radiological";
// A cross-hair has come to rest after so long.
const REST_MS = 150;
// Some browsers read what is saved only a while after the click.
const SAVING_MS = 60000;

// When the picture is ready to show a scan.
let starting = null;
// Number of the last request for the value under the cross-hair, and timer of the last
// resize.
let valuing = 0;
let windowing = 0;

export function startControls() {
  for (const [name, text] of Object.entries(LAYOUTS)) {
    const facts = {
      "data-layout": name,
      "aria-pressed": String(name === "all"),
      title: name,
      onclick: () => setLayout(name),
    };
    byId("layouts").append(make("button", facts, text));
  }
  tellSides();
  byId("convention").addEventListener("click", switchSides);
  byId("shoot").addEventListener("click", savePicture);
  byId("opacity").addEventListener("input", () => changeOpacity(0));
  for (const id of ["low", "high"]) byId(id).addEventListener("input", setWindow);
  byId("shown").addEventListener("click", toggleShown);
  byId("outline").addEventListener("click", toggleOutline);
  byId("entropy").addEventListener("click", () => toggleOverlay("entropy"));
  byId("mask").addEventListener("click", () => toggleOverlay("mask"));
  byId("flip").addEventListener("click", toggleOther);
}

// The picture, which is made when it is first needed.
export async function started() {
  if (!page.picture) {
    const { structures } = page;
    const picture = new Picture(byId("planes"), byId("solid"), structures, located);
    page.picture = picture;
    globalThis.trinatPicture = picture;
    picture.state.radiological = isRadiological();
    starting = picture.start();
  }
  await starting;
  return page.picture;
}

// ---- Where one is ----

// Called by the picture with the index of a structure (0 for none), and mm and voxel of
// its cross-hair.
function located({ place, mm, voxel, dims }) {
  const parts = [];
  if (place) parts.push(shortName(page.structures[place - 1].name));
  // Without the sign of -0.
  const at = mm.map((value) => Math.round(value) || 0);
  parts.push(`${at.join(", ")} mm`);
  if (page.whole && dims) {
    const slices = voxel.map((index, axis) => `${index + 1}/${dims[axis]}`);
    parts.push(`slices ${slices.join(", ")}`);
  }
  const other = otherMap();
  if (other && page.picture.state.flipped) parts.push(other.name);
  const line = parts.join(" · ");
  byId("here").textContent = line;
  clearTimeout(valuing);
  if (page.detail?.scan) {
    valuing = setTimeout(() => showValue(mm, line).catch(() => {}), REST_MS);
  }
}

// The scan's own value under the cross-hair, unless that has moved on.
async function showValue(mm, line) {
  const path = `${pathOf(page.items[page.number])}/value?mm=${mm.join(",")}`;
  const { value } = await askJson(path, { signal: page.asking.signal });
  if (byId("here").textContent !== line || value === null) return;
  const shown = value.toLocaleString("en", { maximumSignificantDigits: 6 });
  byId("here").textContent = `${line} · value ${shown}`;
}

export function forgetPlace() {
  clearTimeout(valuing);
  byId("here").textContent = "";
}

// ---- Sides ----

const isRadiological = () => localStorage.getItem(SIDES_KEY) === "yes";

function tellSides() {
  const on = isRadiological();
  let convention = "Neurological: left on the left";
  let side = "left";
  if (on) {
    convention = "Radiological: left on the right";
    side = "right";
  }
  byId("convention").textContent = convention;
  press(byId("convention"), on);
  byId("sides").textContent =
    `In the axial and coronal plane the person's left is on the ${side}.`;
}

export function switchSides() {
  localStorage.setItem(SIDES_KEY, isRadiological() ? "no" : "yes");
  tellSides();
  page.picture?.setRadiological(isRadiological());
}

// ---- What lies over the scan ----

// One of entropy and mask at a time, or "" for none; a scan without it shows none.
export async function showOverlay(kind) {
  page.overlay = page.detail[kind] ? kind : "";
  for (const id of ["entropy", "mask"]) press(byId(id), page.overlay === id);
  let bytes = null;
  if (page.overlay) {
    bytes = await askBytes(`${pathOf(page.items[page.number])}/${page.overlay}`);
  }
  await page.picture.setOverlay(bytes, page.overlay);
}

export function toggleOverlay(kind) {
  if (!page.detail?.[kind]) return;
  showOverlay(page.overlay === kind ? "" : kind).catch(unlessUnwanted);
}

// Return the map to compare with: another result, or the labels before a correction; null
// without either, and for layers that cannot be corrected.
export function otherMap() {
  const { detail, study } = page;
  const item = page.items[page.number];
  const layer = layerOf(item);
  if (layer !== correctedLayerOf(item)) return null;
  if (detail?.against && !layer) return { kind: "against", name: study.against };
  if (!detail?.correction) return null;
  return { kind: layer ? `${layer}-predicted` : "predicted", name: "As predicted" };
}

// The label map to compare with, in place of the scan's own.
export async function showOther(on) {
  const other = otherMap();
  if (!other) on = false;
  press(byId("flip"), on);
  let { against } = page.picture;
  if (on && !against) {
    const path = `${pathOf(page.items[page.number])}/${other.kind}`;
    against = new Uint8Array(await askBytes(path));
  }
  page.picture.flip(on, against);
  page.picture.move(page.picture.at());
}

export function toggleOther() {
  if (otherMap()) {
    showOther(!page.picture.state.flipped).catch(unlessUnwanted);
  }
}

// ---- How it looks ----

export function toggleShown() {
  if (!page.picture) return;
  const on = !page.picture.state.shown;
  press(byId("shown"), on);
  page.picture.setShown(on);
}

export function toggleOutline() {
  if (!page.picture) return;
  const on = !page.picture.state.outline;
  press(byId("outline"), on);
  page.picture.setOutline(on);
}

export function setLayout(name) {
  byId("stage").dataset.layout = name;
  for (const button of byId("layouts").children) {
    press(button, button.dataset.layout === name);
  }
  page.picture?.setLayout(name);
}

// Change the opacity of the labels, from 0 to 1.
export function changeOpacity(by) {
  const value = Number(byId("opacity").value) + by;
  byId("opacity").value = Math.min(1, Math.max(0, value));
  page.picture?.setOpacity(Number(byId("opacity").value));
}

function setWindow() {
  cancelAnimationFrame(windowing);
  windowing = requestAnimationFrame(() => {
    page.picture?.setWindow(Number(byId("low").value), Number(byId("high").value));
  });
}

// Save the current view as a picture with the name of its scan.
export async function savePicture() {
  if (!page.picture || document.body.classList.contains("empty")) return;
  try {
    const blob = await page.picture.snapshot(byId("stage").dataset.layout);
    const name = page.items[page.number].name.replaceAll("/", "_");
    const href = URL.createObjectURL(blob);
    make("a", { href, download: `${name}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(href), SAVING_MS);
  } catch (error) {
    tell(error.message);
  }
}
