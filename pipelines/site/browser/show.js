// A scan and its labels as the picture of the page takes them: RAS axes, a byte a voxel.
// The same as pipelines/view/voxels.py.
import { AXES, everyNth } from "./grid.js";
import { withNeighbours } from "./masks.js";
import { writeNifti } from "./nifti.js";
import { upright } from "./resample.js";

/** @typedef {import("./grid.js").Volume} Volume */

// Brighter voxels than this share are shown alike.
const BRIGHTEST_SHARE = 0.998;
// Sample every third voxel to estimate the brightness.
const STEP = 3;

/** @returns {Volume} a scan from 0 to its bright end as 0 to 255, on RAS axes */
export function toShow(scan) {
  const turned = upright(scan);
  const ranked = thinned(turned, STEP).data.sort();
  const brightest = ranked[Math.floor(BRIGHTEST_SHARE * (ranked.length - 1))];
  const gain = brightest > 0 ? 255 / brightest : 0;
  const data = new Uint8Array(turned.data.length);
  // Bytes are cut off, not rounded, as in Python.
  for (let at = 0; at < data.length; at++) {
    data[at] = Math.min(Math.max(turned.data[at] * gain, 0), 255);
  }
  return { ...turned, data };
}

/** @returns {Volume} the voxels of a mask that share a face with what is outside, as 255 */
export function outlineOf(mask) {
  const isOutside = mask.data.map((isSet) => isSet ? 0 : 1);
  const near = withNeighbours(isOutside, mask.shape);
  return { ...mask, data: mask.data.map((isSet, at) => isSet && near[at] ? 255 : 0) };
}

/** @returns {Volume} every n-th voxel of each axis */
export function thinned(volume, step) {
  const { data, shape } = everyNth(volume, [step, step, step]);
  const affine = [...volume.affine];
  for (const row of AXES) {
    for (const axis of AXES) affine[4 * row + axis] *= step;
  }
  return { data, shape, affine };
}

/** @returns {any} the bytes of a NIfTI file of every n-th voxel */
export function shownFile(volume, step) {
  return writeNifti(step > 1 ? thinned(volume, step) : volume);
}
