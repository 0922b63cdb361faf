// MGH files (.mgh, and .mgz once unpacked), as segmentation/io/headers.py reads them.
import { checkAffine, checkShape, checkSpacing, refuse, refuseRest } from "./checks.js";

/** @typedef {import("./grid.js").Volume} Volume */

const VOXELS_AT = 284;
// Number of bytes of scan parameters and history that may follow the voxels: 16 MiB.
const MGH_TAGS = 16777216;
const UNIT_LENGTH_TOLERANCE = 1e-3;
// Voxel types by number; all are big-endian.
const TYPES = {
  0: ["getUint8", 1, Uint8Array],
  1: ["getInt32", 4, Int32Array],
  3: ["getFloat32", 4, Float32Array],
  4: ["getInt16", 2, Int16Array],
};

/**
 * A scan of the bytes of an .mgh file.
 * @param {ArrayBuffer} buffer
 * @returns {Volume}
 */
export function readMgh(buffer) {
  if (buffer.byteLength < VOXELS_AT) refuse("not an MGH file: too short");
  const view = new DataView(buffer);
  if (view.getInt32(0) !== 1) refuse(`MGH version ${view.getInt32(0)}, not 1`);
  const shape = checkShape([4, 8, 12, 16].map((at) => view.getInt32(at)));
  const type = TYPES[view.getInt32(20)];
  if (!type) refuse(`MGH voxel type ${view.getInt32(20)}, not one number a voxel`);
  const hasPlace = view.getInt16(28);
  if (hasPlace !== 0 && hasPlace !== 1) {
    refuse(`goodRASFlag is ${hasPlace}, not 0 or 1`);
  }
  if (!hasPlace) refuse("no orientation in its header");
  const floats = Array.from({ length: 15 }, (_, n) => view.getFloat32(30 + 4 * n));
  const zooms = floats.slice(0, 3);
  const directions = [floats.slice(3, 6), floats.slice(6, 9), floats.slice(9, 12)];
  const centre = floats.slice(12);
  checkSpacing(zooms);
  for (const direction of directions) {
    if (!(Math.abs(Math.hypot(...direction) - 1) <= UNIT_LENGTH_TOLERANCE)) {
      refuse("direction cosines are not unit vectors");
    }
  }
  const affine = affineOf(directions, zooms, centre, shape);
  checkAffine(affine, "header");
  return { data: voxelsOf(view, shape, type), shape, affine, notes: [] };
}

// The header has the place of the middle voxel.
function affineOf(directions, zooms, centre, shape) {
  const found = [];
  for (const row of [0, 1, 2]) {
    const steps = directions.map((direction, axis) => direction[row] * zooms[axis]);
    const toMiddle = steps.reduce(
      (sum, step, axis) => sum + (step * shape[axis]) / 2,
      0,
    );
    found.push(...steps, centre[row] - toMiddle);
  }
  return [...found, 0, 0, 0, 1];
}

function voxelsOf(view, shape, [getter, bytes, Kind]) {
  const [X, Y, Z] = shape;
  const out = new Kind(X * Y * Z);
  if (VOXELS_AT + out.byteLength > view.byteLength) {
    refuse("the file ends before its voxels do", "copy or download it again");
  }
  if (view.byteLength - VOXELS_AT - out.byteLength > MGH_TAGS) refuseRest();
  for (let n = 0; n < out.length; n++) out[n] = view[getter](VOXELS_AT + n * bytes);
  return out;
}
