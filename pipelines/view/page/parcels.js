// Parcels of the cortex, in place of the structures, of scans that have a map of them.
import { byId, page, press, watchScan } from "./page.js";
import { open } from "./scan.js";

export function startParcels() {
  byId("parcels").addEventListener("click", toggleParcels);
  watchScan(fillButton);
}

function fillButton() {
  byId("parcels").hidden = !page.study.parcels?.length;
  byId("parcels").disabled = !page.items[page.number]?.parcels;
  press(byId("parcels"), page.parcels);
}

// The other map of the scan, with the cross-hair where it is.
export async function toggleParcels() {
  if (byId("parcels").disabled || byId("parcels").hidden) return;
  page.parcels = !page.parcels;
  await open(page.number, page.whole ? page.picture.at() : null);
}
