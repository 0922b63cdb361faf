// Limits on a scan's header, those of segmentation/io/limits.py and orientation.py.
import { AXES, columnLengths, determinant } from "./grid.js";

const MAX_SIDE = 1500;
const MIN_SIDE = 16;
// Number of voxels that fit into 2 GB of a browser's memory, with all copies made of them.
const MAX_VOXELS = 384 ** 3;
const SPACING_RANGE_MM = [0.01, 100];
const MAX_SHEAR = 1e-3;
const MAX_ORIGIN_MM = 1e5;
const HEADER_IS_WRONG = "its header is wrong; convert the scan again from its source";

/**
 * Says in one line why a scan is not taken, and what to do.
 * @returns {never}
 */
export function refuse(problem, remedy = HEADER_IS_WRONG) {
  throw new Error(`${problem}: ${remedy}`);
}

/** @returns {import("./grid.js").Triple} the three sides of an image with these dimensions */
export function checkShape(dims) {
  if (!dims.length || dims.some((side) => !(side > 0))) {
    refuse(`impossible dimensions ${dims.join(" x ")}`);
  }
  const volumes = dims.slice(3).reduce((product, side) => product * side, 1);
  if (volumes > 1) {
    refuse(`${volumes} volumes in one file`, "split it and give one volume");
  }
  const [x, y = 1, z = 1] = dims;
  const sides = [x, y, z].join(" x ");
  if (Math.max(x, y, z) > MAX_SIDE || x * y * z > MAX_VOXELS) {
    refuse(
      `${sides} voxels are too many for a browser`,
      "resample it, or use trinat predict",
    );
  }
  if (Math.min(x, y, z) < MIN_SIDE) {
    refuse(
      `${sides} voxels, fewer than ${MIN_SIDE} slices along an axis`,
      "give a whole-head 3D scan",
    );
  }
  return [x, y, z];
}

export function checkSpacing(zooms) {
  const [low, high] = SPACING_RANGE_MM;
  if (!zooms.every((mm) => mm >= low && mm <= high)) {
    refuse(`impossible voxel size ${zooms.join(" x ")} mm`);
  }
}

/** Refuse an affine that can be none of a scan; `name` is what it comes from. */
export function checkAffine(affine, name) {
  if (!affine.every(Number.isFinite)) refuse(`its ${name} is not finite`);
  const lengths = columnLengths(affine);
  const [low, high] = SPACING_RANGE_MM;
  if (Math.min(...lengths) === 0) refuse(`its ${name} is singular`);
  if (Math.min(...lengths) < low || Math.max(...lengths) > high) {
    refuse(`its ${name} has impossible voxel sizes`);
  }
  const volume = lengths[0] * lengths[1] * lengths[2];
  if (Math.abs(determinant(affine)) / volume < MAX_SHEAR) {
    refuse(`its ${name} is singular`);
  }
  for (const one of AXES) {
    for (const other of AXES.slice(one + 1)) {
      let cosine = 0;
      for (const row of [0, 4, 8]) {
        cosine += (affine[row + one] / lengths[one]) *
          (affine[row + other] / lengths[other]);
      }
      if (Math.abs(cosine) > MAX_SHEAR) refuse(`its ${name} has shear`);
    }
  }
  if (AXES.some((axis) => Math.abs(affine[4 * axis + 3]) > MAX_ORIGIN_MM)) {
    refuse(`its ${name} puts the scan more than ${MAX_ORIGIN_MM / 1000} m away`);
  }
}

/** Refuse a file with more behind its voxels than its format allows. */
export function refuseRest() {
  refuse(
    "holds more data than its header announces",
    "its header or its data are wrong; make it again",
  );
}

/** Refuse voxels that are no numbers, or all the same. */
export function checkValues(data) {
  let low = Infinity;
  let high = -Infinity;
  let wrong = 0;
  for (let at = 0; at < data.length; at++) {
    const value = data[at];
    if (value < low) low = value;
    if (value > high) high = value;
    if (!Number.isFinite(value)) wrong += 1;
  }
  if (wrong) refuse(`${wrong} voxels are NaN or infinite`, "set them to 0");
  if (low === high) refuse(`all voxels are ${low}`, "give a scan of a head");
}
