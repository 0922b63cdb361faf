// NIfTI files: read with the checks of segmentation/io/headers.py and orientation.py, and label
// maps written.
import { columnLengths, determinant } from "./grid.js";
import { checkAffine, checkShape, checkSpacing, refuse, refuseRest } from "./checks.js";

/** @typedef {import("./grid.js").Volume} Volume */

const HEADER_BYTES = 348;
const HEADER_2_BYTES = 540;
// Number of zeros that may follow the voxels.
const NIFTI_PADDING = 4096;
// The codes of NIfTI for what a voxel is, and how it is read.
const TYPES = {
  2: ["getUint8", 1, Uint8Array],
  4: ["getInt16", 2, Int16Array],
  8: ["getInt32", 4, Int32Array],
  16: ["getFloat32", 4, Float32Array],
  64: ["getFloat64", 8, Float64Array],
  256: ["getInt8", 1, Int8Array],
  512: ["getUint16", 2, Uint16Array],
  768: ["getUint32", 4, Uint32Array],
  1024: ["getBigInt64", 8, BigInt64Array],
  1280: ["getBigUint64", 8, BigUint64Array],
};
const MILLIMETRES = [0, 2];
const LABEL_INTENT = 1002;
const TRUST = "trinat predict can be told which form to trust";
// Forms that differ by less are the same.
const SAME_GRID_MM = 0.1;
const LARGEST_FORM_CODE = 5;
const MOST_DIMENSIONS = 7;
// Relative, of the voxel size in the header to that of its form.
const SAME_SPACING = 0.01;

/**
 * The fields of a header that say what and where voxels are; pixdim begins with the handedness.
 * @typedef {object} Fields
 * @property {string} magic
 * @property {number} units
 * @property {number[]} dim their count first
 * @property {number} datatype
 * @property {number} bits of a voxel
 * @property {number[]} pixdim
 * @property {number} offset of the first voxel, in bytes
 * @property {number} slope
 * @property {number} inter
 * @property {number} qformCode
 * @property {number} sformCode
 * @property {number[]} quaternion
 * @property {number} epsilon of the numbers that it is written in
 * @property {number[]} shift
 * @property {number[]} rows of the s-form
 */

/**
 * A scan of the bytes of a .nii file.
 * @param {ArrayBuffer} buffer
 * @returns {Volume}
 */
export function readNifti(buffer) {
  if (buffer.byteLength < HEADER_BYTES) refuse("not a NIfTI file: too short");
  const view = new DataView(buffer);
  const isLittle = [HEADER_BYTES, HEADER_2_BYTES].includes(view.getInt32(0, true));
  const length = view.getInt32(0, isLittle);
  if (![HEADER_BYTES, HEADER_2_BYTES].includes(length)) {
    refuse("not a NIfTI file", "convert the scan to .nii.gz");
  }
  if (buffer.byteLength < length) refuse("not a NIfTI file: too short");
  const isFirst = length === HEADER_BYTES;
  const fields = isFirst ? fieldsOf(view, isLittle) : fieldsOf2(view, isLittle);
  if (fields.magic !== (isFirst ? "n+1\0" : "n+2\0")) {
    refuse("not a single-file NIfTI image, though named .nii");
  }
  if (!MILLIMETRES.includes(fields.units & 7)) {
    refuse("units are not millimetres", "convert the header to millimetres");
  }
  const [count, ...sides] = fields.dim;
  if (!(count >= 1 && count <= MOST_DIMENSIONS)) refuse(`${count} dimensions, not 3`);
  const shape = checkShape(sides.slice(0, count));
  const zooms = fields.pixdim.slice(1, 4);
  checkSpacing(zooms);
  const { datatype, bits, offset, slope, inter } = fields;
  const type = TYPES[datatype];
  if (!type) {
    refuse(`voxel type ${datatype}, not one number a voxel`, "give a T1-weighted scan");
  }
  if (bits !== 8 * type[1]) {
    refuse(`voxels of ${bits} bits and of type ${datatype} at once`);
  }
  const { affine, notes } = placeOf(formsOf(fields, zooms), shape, zooms);
  const data = voxelsOf(buffer, offset, length, shape, type, isLittle);
  return { data: scaledBy(data, slope, inter), shape, affine, notes };
}

const magicAt = (view, at) =>
  String.fromCharCode(...new Uint8Array(view.buffer, at, 4));

/** @returns {Fields} of NIfTI-1 */
function fieldsOf(view, isLittle) {
  const short = (at) => view.getInt16(at, isLittle);
  const floats = (count, at) =>
    Array.from({ length: count }, (_, n) => view.getFloat32(at + 4 * n, isLittle));
  const [offset, slope, inter] = floats(3, 108);
  return {
    magic: magicAt(view, 344),
    units: view.getUint8(123),
    dim: Array.from({ length: 8 }, (_, n) => short(40 + 2 * n)),
    datatype: short(70),
    bits: short(72),
    pixdim: floats(8, 76),
    offset,
    slope,
    inter,
    qformCode: short(252),
    sformCode: short(254),
    quaternion: floats(3, 256),
    epsilon: 2 ** -23,
    shift: floats(3, 268),
    rows: floats(12, 280),
  };
}

/** @returns {Fields} of NIfTI-2 */
function fieldsOf2(view, isLittle) {
  const long = (at) => Number(view.getBigInt64(at, isLittle));
  const doubles = (count, at) =>
    Array.from({ length: count }, (_, n) => view.getFloat64(at + 8 * n, isLittle));
  const [slope, inter] = doubles(2, 176);
  return {
    magic: magicAt(view, 4),
    units: view.getInt32(500, isLittle),
    dim: Array.from({ length: 8 }, (_, n) => long(16 + 8 * n)),
    datatype: view.getInt16(12, isLittle),
    bits: view.getInt16(14, isLittle),
    pixdim: doubles(8, 104),
    offset: long(168),
    slope,
    inter,
    qformCode: view.getInt32(344, isLittle),
    sformCode: view.getInt32(348, isLittle),
    quaternion: doubles(3, 352),
    epsilon: Number.EPSILON,
    shift: doubles(3, 376),
    rows: doubles(12, 400),
  };
}

function voxelsOf(buffer, offset, length, shape, [getter, bytes, Kind], isLittle) {
  const [X, Y, Z] = shape;
  const count = X * Y * Z;
  // Four bytes behind the header say whether extensions follow.
  const isWhole = Number.isInteger(offset) && offset >= length + 4;
  if (!isWhole || offset + count * bytes > buffer.byteLength) {
    refuse("the file ends before its voxels do", "copy or download it again");
  }
  checkExtensions(new DataView(buffer), length, offset, isLittle);
  const rest = new Uint8Array(buffer, offset + count * bytes);
  if (rest.length > NIFTI_PADDING || rest.some((byte) => byte)) refuseRest();
  if (isLittle || bytes === 1) {
    return new Kind(buffer.slice(offset, offset + count * bytes));
  }
  const view = new DataView(buffer, offset);
  const out = new Kind(count);
  for (let n = 0; n < count; n++) out[n] = view[getter](n * bytes, false);
  return out;
}

// The first byte behind the header says whether extensions follow; each begins with its own size.
function checkExtensions(view, length, offset, isLittle) {
  if (!view.getUint8(length)) return;
  let at = length + 4;
  while (at + 8 <= offset) {
    const size = view.getInt32(at, isLittle);
    if (size < 8 || at + size > offset) {
      refuse("a header extension reaches into the voxels");
    }
    at += size;
  }
}

// As in Python: unscaled integers of up to 32 bits are kept, other values become float32.
function scaledBy(stored, slope, inter) {
  let data = stored;
  if (stored instanceof BigInt64Array || stored instanceof BigUint64Array) {
    data = new Float64Array(stored.length);
    for (let at = 0; at < data.length; at++) data[at] = Number(stored[at]);
  }
  const isScaled = slope !== 0 && !Number.isNaN(slope) && (slope !== 1 || inter !== 0);
  const stays = data instanceof Float32Array ||
    !(data instanceof Float64Array || data instanceof Uint32Array);
  if (!isScaled) return stays ? data : new Float32Array(data);
  // Arrays of all voxels are filled in loops: 256³ by `from` and a function take 2.3 s, not 0.05.
  const out = new Float32Array(data);
  const gain = Math.fround(slope);
  for (let at = 0; at < out.length; at++) {
    out[at] = Math.fround(out[at] * gain) + Math.fround(inter);
  }
  return out;
}

// ---- Where the voxels are ----

function formsOf(fields, zooms) {
  const { qformCode, sformCode, rows } = fields;
  for (const [name, code] of Object.entries({ qformCode, sformCode })) {
    if (!(code >= 0 && code <= LARGEST_FORM_CODE)) {
      refuse(`unknown ${name.replace("Code", "_code")} ${code}`);
    }
  }
  return {
    sform: { name: "s-form", code: sformCode, affine: [...rows, 0, 0, 0, 1] },
    qform: { name: "q-form", code: qformCode, affine: fromQuaternion(fields, zooms) },
  };
}

/**
 * An affine of a quaternion's last three numbers; null if they are no rotation, or if the sign of
 * the third axis is none. A sign of 0 stands for 1.
 */
function fromQuaternion({ quaternion, epsilon, pixdim, shift }, [x, y, z]) {
  const [b, c, d] = quaternion;
  const sign = pixdim[0] === 0 ? 1 : pixdim[0];
  if (Math.abs(sign) !== 1) return null;
  let rest = 1 - (b * b + c * c + d * d);
  // At a half turn only rounding is left, and its root would turn a head by 0.1 mm.
  if (Math.abs(rest) < 3 * epsilon) rest = 0;
  if (!(rest >= 0)) return null;
  const a = Math.sqrt(rest);
  const turn = [
    [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
    [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
    [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
  ];
  const found = [];
  turn.forEach((row, axis) => {
    found.push(row[0] * x, row[1] * y, row[2] * z * sign, shift[axis]);
  });
  return [...found, 0, 0, 0, 1];
}

// The s-form goes before the q-form; where both are coded they must not contradict each other.
function placeOf({ sform, qform }, shape, zooms) {
  if (!sform.code && !qform.code) {
    refuse("no orientation in its header", TRUST);
  }
  const taken = sform.code ? sform : qform;
  checkForm(taken);
  const { name, affine } = taken;
  const notes = [];
  const isOther = columnLengths(affine).some((mm, axis) =>
    Math.abs(mm - zooms[axis]) > SAME_SPACING * zooms[axis]
  );
  if (isOther) {
    const sizes = zooms.map((mm) => Number(mm.toPrecision(3))).join(" x ");
    notes.push(
      `its header's voxel size of ${sizes} mm is not that of the ${name}, which is used`,
    );
  }
  if (!sform.code || !qform.code) return { affine, notes };
  checkForm(qform);
  if (doSidesDiffer(affine, qform.affine)) {
    refuse("q- and s-form disagree about which side is left", TRUST);
  }
  const apart = apartMm(affine, qform.affine, shape);
  if (apart > SAME_GRID_MM) {
    const upTo = apart.toFixed(1);
    notes.push(`q- and s-form differ by up to ${upTo} mm; the s-form is used`);
  }
  return { affine, notes };
}

function checkForm({ name, affine }) {
  if (!affine) refuse(`its ${name} is not a rotation`, TRUST);
  checkAffine(affine, name);
}

// Return true if one form mirrors the other, or if they differ by more than 60° in the
// direction to the right.
function doSidesDiffer(one, other) {
  if (determinant(one) * determinant(other) < 0) return true;
  const [ofOne, ofOther] = [columnLengths(one), columnLengths(other)];
  let cosine = 0;
  for (const axis of [0, 1, 2]) {
    cosine += (one[axis] / ofOne[axis]) * (other[axis] / ofOther[axis]);
  }
  return cosine < 0.5;
}

// The largest distance between the places of one voxel: it is at a corner.
function apartMm(one, other, shape) {
  let largest = 0;
  for (let corner = 0; corner < 8; corner++) {
    const at = shape.map((length, axis) => ((corner >> axis) & 1 ? length - 1 : 0));
    const apart = [0, 4, 8].map((row) => {
      const [a, b, c, d] = [0, 1, 2, 3].map((by) => one[row + by] - other[row + by]);
      return a * at[0] + b * at[1] + c * at[2] + d;
    });
    largest = Math.max(largest, Math.hypot(...apart));
  }
  return largest;
}

// ---- Writing ----

/**
 * The bytes of a .nii file, both forms coded alike; the kind is that of the data.
 * @param {Volume} volume with Uint8Array, Int16Array or Float32Array data
 * @returns {Uint8Array}
 */
export function writeNifti({ data, shape, affine }, { labels = false } = {}) {
  const [code] = Object.entries(TYPES).find(([, [, , Kind]]) =>
    data.constructor === Kind
  );
  const bytes = data.BYTES_PER_ELEMENT;
  const offset = HEADER_BYTES + 4;
  const out = new Uint8Array(offset + data.byteLength);
  const view = new DataView(out.buffer);
  view.setInt32(0, HEADER_BYTES, true);
  [3, ...shape, 1, 1, 1, 1].forEach((side, n) => view.setInt16(40 + 2 * n, side, true));
  if (labels) view.setInt16(68, LABEL_INTENT, true);
  view.setInt16(70, Number(code), true);
  view.setInt16(72, 8 * bytes, true);
  const { quaternion, zooms, sign } = toQuaternion(affine);
  [sign, ...zooms].forEach((value, n) => view.setFloat32(76 + 4 * n, value, true));
  view.setFloat32(108, offset, true);
  view.setFloat32(112, 1, true);
  view.setUint8(123, 2);
  view.setInt16(252, 1, true);
  view.setInt16(254, 1, true);
  const shift = [affine[3], affine[7], affine[11]];
  [...quaternion, ...shift].forEach((value, n) =>
    view.setFloat32(256 + 4 * n, value, true)
  );
  affine.slice(0, 12).forEach((value, n) => view.setFloat32(280 + 4 * n, value, true));
  out.set([0x6e, 0x2b, 0x31, 0], 344);
  out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
  return out;
}

// The last three numbers of an affine's quaternion, its voxel sizes, and its handedness.
function toQuaternion(affine) {
  const zooms = [0, 1, 2].map((axis) =>
    Math.hypot(affine[axis], affine[4 + axis], affine[8 + axis])
  );
  const sign = determinant(affine) < 0 ? -1 : 1;
  const at = (row, axis) =>
    (affine[4 * row + axis] / zooms[axis]) * (axis === 2 ? sign : 1);
  const trace = at(0, 0) + at(1, 1) + at(2, 2);
  // Each number squared, four times; the largest is divided by.
  const squares = [
    1 + trace,
    1 + 2 * at(0, 0) - trace,
    1 + 2 * at(1, 1) - trace,
    1 + 2 * at(2, 2) - trace,
  ];
  const largest = squares.indexOf(Math.max(...squares));
  const root = Math.sqrt(squares[largest]);
  const products = [
    [root * root, at(2, 1) - at(1, 2), at(0, 2) - at(2, 0), at(1, 0) - at(0, 1)],
    [at(2, 1) - at(1, 2), root * root, at(1, 0) + at(0, 1), at(0, 2) + at(2, 0)],
    [at(0, 2) - at(2, 0), at(1, 0) + at(0, 1), root * root, at(2, 1) + at(1, 2)],
    [at(1, 0) - at(0, 1), at(0, 2) + at(2, 0), at(2, 1) + at(1, 2), root * root],
  ];
  const [a, ...rest] = products[largest].map((value) => value / (2 * root));
  // The first number is not stored: it must not be negative.
  const quaternion = a < 0 ? rest.map((value) => -value) : rest;
  return { quaternion, zooms, sign };
}
