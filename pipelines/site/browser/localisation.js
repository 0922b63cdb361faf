// Region of a scan in which the brain may be, from a few slices. The same as
// segmentation/inference/localisation.py, which has the reasons.
import { cutOut, grown, occupiedBox, sidesOf, whole } from "./grid.js";
import { dilated, eroded, partsOf } from "./masks.js";

/** @typedef {import("./grid.js").Box} Box */
/** @typedef {import("./grid.js").Triple} Triple */

const MARGIN = 12;
const NEAR_END = 3;
const MANY_VOXELS = 400;
const THIN = 7;
const SPECK = 0.05;

/**
 * A box of a volume and, within it, the voxels where brain may be: all of them without a mask.
 * `rim` is where the mask ends and the scan goes on.
 * @typedef {{ box: Box, mask: Uint8Array | null, rim: Uint8Array | null }} BrainRegion
 */

/** @returns {BrainRegion} */
export function wholeRegion(shape) {
  return { box: whole(shape), mask: null, rim: null };
}

/**
 * The region around the brain, of which `seen` shows some slices along an axis.
 * `slices` are the numbers of those; in all others `seen` is 0.
 * @returns {BrainRegion}
 */
export function brainRegion(seen, shape, slices, axis) {
  // Slices that were not looked at are between these, and would keep all parts separate.
  const strides = [1, shape[0], shape[0] * shape[1]];
  const close = [...shape];
  close[axis] = slices.length;
  const places = placesOf(close, strides, slices, axis);
  const looked = new Uint8Array(places.length);
  for (let at = 0; at < looked.length; at++) looked[at] = seen[places[at]];
  const found = new Uint8Array(seen.length);
  const kept = largeParts(thickParts(looked, close, axis), close);
  kept.forEach((isSet, at) => {
    found[places[at]] = isSet;
  });
  const occupied = occupiedBox(found, shape);
  if (!occupied.stop[0]) return wholeRegion(shape);
  const box = grown(occupied, shape, MARGIN);
  const sides = sidesOf(box);
  const part = cutOut(found, shape, box);
  const mask = dilated(part, sides, [MARGIN, MARGIN, MARGIN]);
  // At the end of the scan both masks end together, so there is no rim.
  const reach = MARGIN - NEAR_END;
  const inner = dilated(part, sides, [reach, reach, reach]);
  const rim = mask.map((isSet, at) => isSet && !inner[at] ? 1 : 0);
  return { box, mask, rim };
}

/**
 * Return true if the brain reaches an end of the region beyond which the scan continues.
 */
export function isTooSmall(region, classes) {
  if (!region.rim) return false;
  let voxels = 0;
  for (let at = 0; at < classes.length; at++) {
    if (region.rim[at] && classes[at]) voxels += 1;
  }
  return voxels > MANY_VOXELS;
}

/**
 * Return the index in the whole volume of each voxel of the inspected slices.
 * @param {Triple} shape of these slices alone
 * @param {Triple} strides of the whole
 * @param {number[]} slices
 * @param {number} axis
 */
function placesOf([X, Y, Z], strides, slices, axis) {
  const out = new Int32Array(X * Y * Z);
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        const index = [i, j, k];
        index[axis] = slices[index[axis]];
        out[at] = index[0] * strides[0] + index[1] * strides[1] + index[2] * strides[2];
      }
    }
  }
  return out;
}

// Slices without what is thinner than THIN and no end of something thicker.
function thickParts(mask, shape, axis) {
  const reach = Math.floor(THIN / 2);
  const within = [reach, reach, reach];
  within[axis] = 0;
  const thick = dilated(eroded(mask, shape, within), shape, within);
  // An end is rounded off, or all that the next slice shows.
  const around = [reach, reach, reach];
  around[axis] = 1;
  const near = dilated(thick, shape, around);
  return mask.map((isSet, at) => isSet & near[at]);
}

// A mask without parts that are small beside the largest.
function largeParts(mask, shape) {
  const { parts, sizes } = partsOf(mask, shape);
  const largest = Math.max(...sizes);
  return mask.map((isSet, at) => isSet && sizes[parts[at]] >= SPECK * largest ? 1 : 0);
}
