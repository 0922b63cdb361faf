// Parcels of the cortex, in place of the structures, of scans that have a map of them.
import { byId, page, press, watchScan } from "./page.js";
import { open } from "./scan.js";

export function startParcels() {
  byId("parcels").addEventListener("click", toggleParcels);
  byId("thickness").addEventListener("click", toggleThickness);
  watchScan(fillButton);
}

function fillButton() {
  byId("parcels").hidden = !page.study.parcels?.length;
  byId("parcels").disabled = !page.items[page.number]?.parcels;
  press(byId("parcels"), page.parcels);
  const measured = page.parcels && page.detail?.result?.thickness;
  byId("thickness").hidden = !measured;
  press(byId("thickness"), page.thickness);
  page.picture?.colorSurfaces(page.thickness && measured ? colorOfThickness : null);
}

function toggleThickness() {
  page.thickness = !page.thickness;
  fillButton();
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

// The other map of the scan, with the cross-hair where it is.
export async function toggleParcels() {
  if (byId("parcels").disabled || byId("parcels").hidden) return;
  page.parcels = !page.parcels;
  await open(page.number, page.whole ? page.picture.at() : null);
}
