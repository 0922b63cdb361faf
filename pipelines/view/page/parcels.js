// Layers in place of the structures, of scans that have a map of them: parcels of the cortex, the
// corpus callosum, and lesions.
import { byId, page, press, watchScan } from "./page.js";
import { open } from "./scan.js";

const LAYERS = ["parcels", "callosum", "lesions"];

export function startParcels() {
  for (const layer of LAYERS) {
    byId(layer).addEventListener("click", () => toggleLayer(layer));
  }
  byId("thickness").addEventListener("click", toggleThickness);
  watchScan(fillButtons);
}

function fillButtons() {
  for (const layer of LAYERS) {
    byId(layer).hidden = !page.study.layers?.[layer];
    byId(layer).disabled = !page.items[page.number]?.layers?.includes(layer);
    press(byId(layer), page.layer === layer);
  }
  const measured = page.layer === "parcels" && page.detail?.result?.thickness;
  byId("thickness").hidden = !measured;
  press(byId("thickness"), page.thickness);
  page.picture?.colorSurfaces(page.thickness && measured ? colorOfThickness : null);
}

function toggleThickness() {
  page.thickness = !page.thickness;
  fillButtons();
}

// The ends and the middle of the scale of colors, and what they stand for in mm.
const SCALE = [[68, 1, 84], [33, 145, 140], [253, 231, 37]];
const THINNEST = 1.5;
const THICKEST = 3.5;

// The color of a parcel by its thickness in the scan that is shown; null where it has none.
function colorOfThickness(name) {
  const mm = page.detail?.result?.thickness?.sheets[name]?.mm;
  if (mm === undefined || mm === null) return null;
  const share = Math.min(Math.max((mm - THINNEST) / (THICKEST - THINNEST), 0), 1);
  const at = share * (SCALE.length - 1);
  const below = Math.min(Math.floor(at), SCALE.length - 2);
  return SCALE[below].map((value, channel) =>
    Math.round(value + (at - below) * (SCALE[below + 1][channel] - value))
  );
}

export const toggleParcels = () => toggleLayer("parcels");

// The other map of the scan, with the cross-hair where it is.
async function toggleLayer(layer) {
  if (byId(layer).disabled || byId(layer).hidden) return;
  page.layer = page.layer === layer ? "" : layer;
  await open(page.number, page.whole ? page.picture.at() : null);
}
