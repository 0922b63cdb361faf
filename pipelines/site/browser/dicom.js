// A scan of the DICOM files of a folder: the one T1-weighted series in it, or the one of any
// contrast.
// The same as segmentation/io/dicom/, which says why.
import { checkShape, checkSpacing, refuse } from "./checks.js";
import { isDicom, isPlain, parseDicom } from "./dicom_file.js";
import { medianOf } from "./evidence.js";
import { AXES, columnLengths } from "./grid.js";
import { cross, dot } from "./linear.js";

/** @typedef {import("./grid.js").Volume} Volume */
/** @typedef {import("./dicom_file.js").Dataset} Dataset */

/**
 * An image: where it is in the patient's space (LPS, mm), and its values as stored.
 * @typedef {object} Frame
 * @property {number[]} position
 * @property {number[]} cosines along a row and along a column
 * @property {number[]} spacing between rows and between columns
 * @property {number[]} scaling slope and intercept
 * @property {any} values
 */

const MR = "1.2.840.10008.5.1.4.1.1.4";
const MR_CLASSES = [MR, `${MR}.1`, `${MR}.4`];
const MIN_SIDE = 16;
const MAX_ECHO_MS = 25.0;
const MOST_PROBLEMS = 5;
const REMAKE = "export the series again";
const ONE_SCAN = "give one scan";

// Words of ImageType.
const PHASES = ["P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY"];
const DERIVED = ["DERIVED", "SECONDARY", "MPR", "PROJECTION IMAGE", "REFORMATTED"];
// Words of descriptions, in small letters.
const T1 = /t1|mp2?rage|spgr|bravo|tfe/;
const OTHER_CONTRAST = /(?<![a-z])(t2|flair|ciss|fiesta)/;
const NO_ANATOMY =
  /(?<![a-z])(swi|tof|angio|dwi|dti|diff|adc|bold|asl|perf|field|phase)/;
const SCOUT = /locali[sz]er|scout|survey/;

// Elements that must be the same in all files.
const COMMON = [
  "Rows",
  "Columns",
  "BitsAllocated",
  "PixelRepresentation",
  "FrameOfReferenceUID",
  "SamplesPerPixel",
  "PhotometricInterpretation",
];
// The functional group of an enhanced file that holds each element of a frame.
const GROUPS = {
  ImagePositionPatient: "PlanePositionSequence",
  ImageOrientationPatient: "PlaneOrientationSequence",
  PixelSpacing: "PixelMeasuresSequence",
  RescaleSlope: "PixelValueTransformationSequence",
  RescaleIntercept: "PixelValueTransformationSequence",
};

// Positions are written with few digits.
const POSITION_MM = 0.01;
// Largest distance of a slice from an even grid, as a share of the slices' distance.
const UNEVEN = 0.01;
const SAME_COSINES = 1e-4;
const MAX_SHEAR = 1e-3;

/**
 * @param {ArrayBuffer[]} buffers the files' bytes
 * @param {boolean} anyContrast whether the scan may have another contrast than T1
 * @returns {Volume}
 */
export function readDicom(buffers, anyContrast) {
  const found = buffers.filter(isDicom);
  if (!found.length) refuse("no DICOM file", "give a T1-weighted scan");
  const files = found.map(fileOf).filter(({ dataset }) => dataset);
  const damaged = found.length - files.length;
  if (damaged) {
    refuse(
      `DICOM files in it cannot be read and may be part of the scan: ${damaged}`,
      REMAKE,
    );
  }
  return volumeOf(onlyScan(files, anyContrast));
}

// The bytes of a file and its header, which is null if the file is damaged.
function fileOf(buffer) {
  try {
    return { buffer, dataset: parseDicom(buffer) };
  } catch {
    return { buffer, dataset: null };
  }
}

// ---- Series ----

// The files of the one series that is a scan.
function onlyScan(files, anyContrast) {
  const groups = new Map();
  for (const file of files) {
    const { dataset } = file;
    const key = JSON.stringify([
      first(dataset, "SeriesInstanceUID"),
      whyLeftOut(dataset, anyContrast),
    ]);
    groups.set(key, [...(groups.get(key) ?? []), file]);
  }
  const scans = [];
  const reasons = [];
  for (const [key, group] of groups) {
    let [, reason] = JSON.parse(key);
    const count = group.reduce((sum, { dataset }) => sum + frameCount(dataset), 0);
    if (!reason && count < MIN_SIDE) {
      reason = `only ${count} images, and at least ${MIN_SIDE} are needed`;
    }
    if (reason) reasons.push(reason);
    else scans.push(group);
  }
  if (scans.length === 1) return scans[0];
  const more = reasons.length - MOST_PROBLEMS;
  const named = reasons.slice(0, MOST_PROBLEMS);
  if (more > 0) named.push(`and ${more} more`);
  const why = named.length ? ` (${named.join("; ")})` : "";
  const kind = anyContrast ? "anatomical" : "T1-weighted";
  return refuse(
    `${scans.length || "no"} ${kind} series in it${why}`,
    "give the files of one",
  );
}

/**
 * Return why an image does not belong to a T1-weighted 3D scan, or with `anyContrast` to an
 * anatomical one; "" if it may. Missing elements count in favour of the image.
 * @param {Dataset} dataset
 * @param {boolean} anyContrast
 * @returns {string}
 */
export function whyLeftOut(dataset, anyContrast) {
  const modality = first(dataset, "Modality");
  if (modality !== "MR" || !MR_CLASSES.includes(first(dataset, "SOPClassUID"))) {
    return /^([A-Z]{2}|SEG|RT[A-Z]{1,8})$/.test(modality)
      ? `no MR image (${modality})`
      : "no MR image";
  }
  const kinds = (dataset.ImageType ?? []).map((kind) => kind.toUpperCase());
  const words = [first(dataset, "SeriesDescription"), first(dataset, "ProtocolName")]
    .join(" ").toLowerCase();
  const isT1 = T1.test(words);
  const contrast = first(dataset, "AcquisitionContrast") || "UNKNOWN";
  const pulses = dataset.ScanningSequence ?? [];
  const isEchoPlanar = pulses.includes("EP") ||
    first(dataset, "EchoPlanarPulseSequence") === "YES";
  const againstAnatomy = {
    "a localiser": kinds.includes("LOCALIZER") || SCOUT.test(words),
    "a mosaic": kinds.includes("MOSAIC"),
    "derived from other images": kinds.some((kind) => DERIVED.includes(kind)),
    "no magnitude image": kinds.slice(2).some((kind) => PHASES.includes(kind)),
    "echo-planar": isEchoPlanar,
    "an angiogram": first(dataset, "AngioFlag") === "Y",
    "its description names another kind of image": NO_ANATOMY.test(words) && !isT1,
  };
  const againstT1 = {
    "a 2D acquisition": first(dataset, "MRAcquisitionType") === "2D",
    "its contrast is not T1": !["T1", "UNKNOWN", "MIXED"].includes(contrast),
    [`its echo time is above ${MAX_ECHO_MS} ms`]: echoMs(dataset) > MAX_ECHO_MS,
    "its description names another contrast": OTHER_CONTRAST.test(words) && !isT1,
  };
  const reasons = anyContrast ? againstAnatomy : { ...againstAnatomy, ...againstT1 };
  const found = Object.entries(reasons).find(([, holds]) => holds);
  return found ? found[0] : "";
}

const first = (dataset, keyword) => dataset[keyword]?.[0] ?? "";

function echoMs(dataset) {
  const ofAll = dataset.EchoTime?.[0];
  return ofAll || (ofFrame(dataset, 0, "MREchoSequence").EffectiveEchoTime?.[0] ?? 0);
}

const frameCount = (dataset) => dataset.NumberOfFrames?.[0] || 1;

// The item of a functional group that holds for a frame: its own, else that of all frames.
function ofFrame(dataset, number, sequence) {
  const own = dataset.PerFrameFunctionalGroupsSequence?.[number]?.[sequence]?.[0];
  return own ?? dataset.SharedFunctionalGroupsSequence?.[0]?.[sequence]?.[0] ?? {};
}

// ---- Voxels ----

function volumeOf(files) {
  for (const keyword of COMMON) {
    if (new Set(files.map(({ dataset }) => first(dataset, keyword))).size > 1) {
      refuse(`${keyword} differs between its files`, REMAKE);
    }
  }
  const kept = withoutCopies(files);
  const frames = kept.flatMap(framesOf);
  const { dataset } = kept[0];
  const columns = first(dataset, "Columns");
  const rows = first(dataset, "Rows");
  const shape = checkShape([columns, rows, frames.length]);
  const { ordered, affine, notes } = stack(frames);
  checkSpacing(columnLengths(affine));
  const { data, padding } = valuesOf(ordered, shape);
  if (padding) notes.push(`${padding} voxels of padding are set to 0`);
  if (kept.length < files.length) {
    const copies = files.length - kept.length;
    notes.push(`${copies} files of the series were there twice`);
  }
  return { data, shape, affine, notes };
}

// Files of the same bytes count once.
function withoutCopies(files) {
  const kept = [];
  for (const file of files) {
    const bytes = new Uint8Array(file.buffer);
    const isCopy = kept.some(({ buffer }) => {
      const other = new Uint8Array(buffer);
      return other.length === bytes.length &&
        other.every((byte, at) => byte === bytes[at]);
    });
    if (!isCopy) kept.push(file);
  }
  return kept;
}

// Stored integers where no file scales or pads them, else float32; and how many voxels of padding
// were not 0.
function valuesOf(frames, shape) {
  const [X, Y, Z] = shape;
  const isPlain = frames.every(({ scaling, padding }) =>
    scaling[0] === 1 && scaling[1] === 0 && !padding
  );
  const Kind = isPlain ? frames[0].values.constructor : Float32Array;
  const data = new Kind(X * Y * Z);
  let count = 0;
  frames.forEach(({ values, scaling: [slope, intercept], padding }, slice) => {
    const at = slice * X * Y;
    if (isPlain) {
      data.set(values, at);
      return;
    }
    for (let n = 0; n < values.length; n++) {
      const value = values[n] * slope + intercept;
      const isPadding = padding && values[n] >= padding[0] && values[n] <= padding[1];
      if (isPadding && value !== 0) count++;
      data[at + n] = isPadding ? 0 : value;
    }
  });
  return { data, padding: count };
}

// ---- Frames ----

/** @returns {any[]} where each image in a file is, and its values */
function framesOf({ buffer, dataset }) {
  checkPixels(dataset);
  const count = frameCount(dataset);
  const isEnhanced = "PerFrameFunctionalGroupsSequence" in dataset;
  const places = isEnhanced ? dataset.PerFrameFunctionalGroupsSequence.length : 1;
  if (count !== places) refuse("not a place for each frame", REMAKE);
  const found = [];
  for (let number = 0; number < count; number++) {
    const numbers = (keyword) => {
      const from = isEnhanced ? ofFrame(dataset, number, GROUPS[keyword]) : dataset;
      return from[keyword] ?? [];
    };
    const [slope = 1] = numbers("RescaleSlope");
    const [intercept = 0] = numbers("RescaleIntercept");
    const frame = {
      position: numbers("ImagePositionPatient"),
      cosines: numbers("ImageOrientationPatient"),
      spacing: numbers("PixelSpacing"),
      scaling: [slope, intercept],
      values: storedValues(buffer, dataset, number),
      padding: paddingOf(dataset),
    };
    const { position, cosines, spacing, scaling } = frame;
    const isComplete = position.length === 3 && cosines.length === 6 &&
      spacing.length === 2;
    const all = [...position, ...cosines, ...spacing, ...scaling];
    if (!isComplete || !all.every(Number.isFinite)) {
      refuse("its place, orientation or spacing is missing", REMAKE);
    }
    found.push(frame);
  }
  return found;
}

function checkPixels(dataset) {
  if (!isPlain(dataset)) {
    refuse(
      "compressed DICOM files",
      "export them uncompressed, or use trinat predict",
    );
  }
  const isGrey = first(dataset, "SamplesPerPixel") === 1 &&
    first(dataset, "PhotometricInterpretation") === "MONOCHROME2";
  if (!isGrey) refuse("not grey values", "give a T1-weighted scan");
  const bits = first(dataset, "BitsAllocated");
  if (![8, 16, 32].includes(bits)) refuse(`voxels of ${bits} bits`, REMAKE);
  if (dataset.ModalityLUTSequence?.length) {
    refuse("its values are indices into a lookup table", REMAKE);
  }
  const highest = first(dataset, "BitsStored") - 1;
  if ((dataset.HighBit?.[0] ?? highest) !== highest) {
    refuse("its pixel values do not use the lowest bit", REMAKE);
  }
  if (!dataset.Pixels) refuse("no pixels in it", REMAKE);
}

function kindOf(dataset) {
  const isSigned = first(dataset, "PixelRepresentation") === 1;
  const signed = { 8: Int8Array, 16: Int16Array, 32: Int32Array };
  const unsigned = { 8: Uint8Array, 16: Uint16Array, 32: Uint32Array };
  return (isSigned ? signed : unsigned)[first(dataset, "BitsAllocated")];
}

function storedValues(buffer, dataset, number) {
  const Kind = kindOf(dataset);
  const bytes = first(dataset, "Rows") * first(dataset, "Columns") *
    Kind.BYTES_PER_ELEMENT;
  const start = dataset.Pixels.start + number * bytes;
  if (start + bytes > Math.min(dataset.Pixels.end, buffer.byteLength)) {
    refuse("truncated: its pixels end early", REMAKE);
  }
  const values = new Kind(buffer.slice(start, start + bytes));
  // Bits that are not stored may hold anything.
  const unused = 8 * Kind.BYTES_PER_ELEMENT - first(dataset, "BitsStored");
  if (!unused) return values;
  const shift = 32 - first(dataset, "BitsStored");
  const isSigned = first(dataset, "PixelRepresentation") === 1;
  return values.map((value) =>
    isSigned ? (value << shift) >> shift : (value << shift) >>> shift
  );
}

// The stored values that stand for no measurement, from the lowest to the highest; null for none.
function paddingOf(dataset) {
  // An anonymiser may have emptied it.
  const [first] = dataset.PixelPaddingValue ?? [];
  if (first === undefined) return null;
  const [last = first] = dataset.PixelPaddingRangeLimit ?? [];
  // Compare the bits of the stored type, because some writers omit the sign.
  const ends = kindOf(dataset).from([first, last]);
  return [Math.min(...ends), Math.max(...ends)];
}

// ---- The grid ----

/** Frames in the order of their slices, and the affine (column, row, slice) -> RAS mm. */
function stack(frames) {
  const { row, column } = commonPlane(frames);
  const normal = cross(row, column);
  const height = ({ position }) => dot(position, normal);
  const ordered = [...frames].sort((one, other) => height(one) - height(other));
  // The even grid that comes nearest to all slices: a line fitted by least squares, with slice
  // numbers counted from the middle.
  const count = ordered.length;
  const numbers = ordered.map((_, n) => n - (count - 1) / 2);
  const squares = numbers.reduce((sum, number) => sum + number * number, 0);
  const meanOf = (axis) =>
    ordered.reduce((sum, { position }) => sum + position[axis], 0) / count;
  const means = AXES.map(meanOf);
  const step = AXES.map((axis) =>
    ordered.reduce((sum, { position }, n) => sum + numbers[n] * position[axis], 0) /
    squares
  );
  const offsets = ordered.map(({ position }, n) =>
    AXES.map((axis) => position[axis] - means[axis] - numbers[n] * step[axis])
  );
  const heights = ordered.map(height);
  const gaps = heights.slice(1).map((each, n) => each - heights[n]);
  const usualMm = medianOf(gaps);
  const offMm = Math.max(...offsets.map((offset) => Math.abs(dot(offset, normal))));
  checkEven(offsets, gaps, step, normal, usualMm, offMm);
  const [rowsMm, columnsMm] = ordered[0].spacing;
  const origin = AXES.map((axis) => means[axis] + numbers[0] * step[axis]);
  const affine = [];
  for (const axis of AXES) {
    // In DICOM's space x grows to the patient's left and y to the back.
    const sign = axis === 2 ? 1 : -1;
    const line = [
      row[axis] * columnsMm,
      column[axis] * rowsMm,
      step[axis],
      origin[axis],
    ];
    // No zero is negative.
    affine.push(...line.map((value) => sign * value + 0));
  }
  const notes = [];
  if (offMm > POSITION_MM) {
    const off = offMm.toPrecision(2);
    notes.push(
      `slices lie up to ${off} mm off an even spacing of ${usualMm.toPrecision(4)} mm`,
    );
  }
  return { ordered, affine: [...affine, 0, 0, 0, 1], notes };
}

function commonPlane(frames) {
  const [{ cosines, spacing }] = frames;
  for (const frame of frames) {
    const apart = frame.cosines.map((value, n) => Math.abs(value - cosines[n]));
    if (Math.max(...apart) > SAME_COSINES) {
      refuse("slices of several orientations", ONE_SCAN);
    }
    if (String(frame.spacing) !== String(spacing)) {
      refuse("slices of several pixel sizes", ONE_SCAN);
    }
  }
  const row = cosines.slice(0, 3);
  const column = cosines.slice(3);
  const errors = [dot(row, row) - 1, dot(column, column) - 1, dot(row, column)];
  if (Math.max(...errors.map(Math.abs)) > MAX_SHEAR) {
    refuse("rows and columns are not at right angles", REMAKE);
  }
  return { row, column };
}

function checkEven(offsets, gaps, step, normal, usualMm, offMm) {
  const slackMm = Math.max(POSITION_MM, usualMm * UNEVEN);
  const twice = gaps.filter((gap) => gap < POSITION_MM).length;
  if (twice) {
    refuse(
      `${twice} slices where another is: several echoes, times or parts in one series`,
      ONE_SCAN,
    );
  }
  if (offMm > slackMm) {
    const missing = gaps.map((gap) => Math.round(gap / usualMm) - 1);
    const isWhole = gaps.every((gap, n) =>
      Math.abs(gap - usualMm * (missing[n] + 1)) <= slackMm
    );
    const sum = missing.reduce((total, each) => total + each, 0);
    if (isWhole) refuse(`slices are missing within it: ${sum}`, REMAKE);
    refuse("unequal spacing of slices", REMAKE);
  }
  if (Math.max(...offsets.flat().map(Math.abs)) > slackMm) {
    refuse("slices are not in a line", REMAKE);
  }
  const along = dot(step, normal);
  const sideways = AXES.map((axis) => step[axis] - normal[axis] * along);
  if (Math.hypot(...sideways) > MAX_SHEAR * usualMm) {
    refuse("slices are shifted sideways (a tilted gantry)", REMAKE);
  }
}
