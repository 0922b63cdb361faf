// Background of a scan, brightness of its tissue, and intensities on a common scale. The
// same as segmentation/space/background.py, which has the reasons.
import {
  AXES,
  columnLengths,
  cutGrid,
  cutOut,
  everyNth,
  grown,
  isEmpty,
  roundHalfToEven,
  voxelMm3,
  whole,
} from "./grid.js";
import { grownByFaces, reachedFromOutside } from "./masks.js";

/** @typedef {import("./grid.js").Volume} Volume */
/** @typedef {import("./grid.js").Triple} Triple */
/** @typedef {import("./grid.js").Box} Box */

/**
 * The brightness of nothing and the bright end of the tissue, in the scan's own values.
 * Beyond `box` the scan was padded. `fill` is what the outside of the head was set to, where that
 * is not as dark as nothing; else null.
 * @typedef {{ level: number, bright: number, box: Box, fill: number | null }} Background
 */

const SAMPLE_MM = 1.0;
export const TISSUE = 0.15;
const BRIGHT_PERCENTILE = 98;
const BRIGHT_MM3 = 1e5;
const MOST_ROUNDS = 20;
const CORNER = 3;
const CORNERS = 4;
const OUTLIERS = 1000;
const LEAST_AIR = 0.2;
const ONE_SIDED = 2.0;
const FURTHEST_BELOW = 0.35;
// Vessels and fat beside a surface coil go beyond 1; what goes beyond 2 is an artefact.
export const BRIGHTEST = 2.0;
const SMALLEST_NORMAL = 1.1754943508222875e-38;

/** @returns {Volume} a scan without its padding, 0 where nothing is, about 1 at its bright end */
export function onWorkingScale(volume) {
  const background = findBackground(volume);
  const { level, box, fill } = background;
  const reach = background.bright - level;
  if (!(reach >= SMALLEST_NORMAL)) {
    throw new Error("no head stands out from the background: give a scan of a head");
  }
  const inside = cutOut(volume.data, volume.shape, box);
  const grid = cutGrid(volume, box);
  const values = new Float32Array(inside);
  const darkest = Math.fround(level);
  const gain = Math.fround(1 / reach);
  for (let at = 0; at < values.length; at++) {
    const value = Math.fround(Math.fround(values[at] - darkest) * gain);
    values[at] = Math.min(Math.max(value, 0), BRIGHTEST);
  }
  if (fill !== null) {
    const outside = reachedFromOutside(inside, grid.shape, fill);
    for (let at = 0; at < values.length; at++) if (outside[at]) values[at] = 0;
  }
  return { ...volume, ...grid, data: values };
}

/** @returns {Background} from a scan's border, the values at it, and the noise of its air */
export function findBackground(volume) {
  const box = withoutPadding(volume.data, volume.shape);
  const inside = cutOut(volume.data, volume.shape, box);
  const { shape } = cutGrid(volume, box);
  const fill = valueThatFills(inside, shape);
  const steps = columnLengths(volume.affine).map((mm) =>
    Math.max(1, roundHalfToEven(SAMPLE_MM / mm))
  );
  let sample = everyNth({ data: inside, shape }, steps).data;
  if (fill !== null) sample = sample.filter((value) => value !== fill);
  const only = fill ?? 0;
  if (!sample.length) return { level: only, bright: only, box, fill: null };
  // Typed arrays sort by number.
  const ranked = sample.sort();
  const cellMm3 = voxelMm3(volume) * steps[0] * steps[1] * steps[2];
  const most = Math.floor(ranked.length / 5);
  const few = Math.min(roundHalfToEven(BRIGHT_MM3 / cellMm3), most) + 1;
  const firstGuess = ranked[ranked.length - few];
  let { level, hasAir } = levelOf(ranked, firstGuess);
  let bright = brightEnd(ranked, level, firstGuess);
  if (fill === null) return { level, bright, box, fill };
  const isNear = Math.abs(fill - level) <= TISSUE * (bright - level);
  if (hasAir && !isNear && !isAirAround(inside, shape, fill, ranked, firstGuess)) {
    // Dark voxels are tissue, such as white matter in a stripped T2 scan.
    level = darkestOf(ranked);
    hasAir = false;
    bright = brightEnd(ranked, level, firstGuess);
  }
  const span = bright - level;
  // Tissue of one value has no span that could say how far below it is too far.
  const furthest = span ? FURTHEST_BELOW * span : Infinity;
  const isBelow = level - fill > 0 && level - fill <= furthest;
  if (isNear || (isBelow && !hasAir)) {
    return {
      level: fill,
      bright: brightEnd(ranked, fill, firstGuess),
      box,
      fill: null,
    };
  }
  return { level, bright, box, fill };
}

const tissueThreshold = (level, bright) => level + TISSUE * (bright - level);

// ---- Padding ----

// The part of an array that no plane of one value is around, however often it was padded.
function withoutPadding(data, shape) {
  let box = whole(shape);
  while (true) {
    let isSmaller = false;
    const smaller = { start: [...box.start], stop: [...box.stop] };
    for (const axis of AXES) {
      while (smaller.start[axis] < smaller.stop[axis]) {
        if (!isEvenPlane(data, shape, smaller, axis, smaller.start[axis])) break;
        smaller.start[axis] += 1;
        isSmaller = true;
      }
      while (smaller.stop[axis] > smaller.start[axis]) {
        if (!isEvenPlane(data, shape, smaller, axis, smaller.stop[axis] - 1)) break;
        smaller.stop[axis] -= 1;
        isSmaller = true;
      }
      // The tissue is of one value: what is around it is shown by a plane of that.
      if (isEmpty(smaller)) return grown(box, shape);
    }
    if (!isSmaller) return box;
    box = smaller;
  }
}

// Return true if a plane of a box has the same value everywhere.
function isEvenPlane(data, [X, Y], box, axis, place) {
  const start = [...box.start];
  const stop = [...box.stop];
  start[axis] = place;
  stop[axis] = place + 1;
  const first = data[start[0] + X * (start[1] + Y * start[2])];
  for (let k = start[2]; k < stop[2]; k++) {
    for (let j = start[1]; j < stop[1]; j++) {
      const row = X * (j + Y * k);
      for (let i = start[0]; i < stop[0]; i++) {
        if (data[row + i] !== first) return false;
      }
    }
  }
  return true;
}

// The value that half of the eight corners were set to; null where they have noise or tissue.
function valueThatFills(data, shape) {
  const counts = new Map();
  for (let corner = 0; corner < 8; corner++) {
    // In this order the first of two values that are as frequent is the same as in Python.
    const isEnd = [(corner >> 2) & 1, (corner >> 1) & 1, corner & 1];
    const start = isEnd.map((end, axis) => end ? Math.max(shape[axis] - CORNER, 0) : 0);
    const stop = isEnd.map((end, axis) =>
      end ? shape[axis] : Math.min(CORNER, shape[axis])
    );
    const values = cutOut(data, shape, { start, stop });
    if (values.every((value) => value === values[0])) {
      counts.set(values[0], (counts.get(values[0]) || 0) + 1);
    }
  }
  let most = 0;
  let found = null;
  for (const [value, count] of counts) {
    if (count > most) {
      most = count;
      found = value;
    }
  }
  return most < CORNERS ? null : found;
}

// ---- Brightness ----

// Return true if most voxels next to those with the fill value are as dark as air.
function isAirAround(data, shape, fill, ranked, firstGuess) {
  const isSet = Uint8Array.from(data, (value) => Number(value === fill));
  const grown = grownByFaces(isSet, shape, 1);
  const threshold = tissueThreshold(darkestOf(ranked), firstGuess);
  let beside = 0;
  let dark = 0;
  for (let at = 0; at < data.length; at++) {
    if (!grown[at] || isSet[at]) continue;
    beside++;
    if (data[at] <= threshold) dark++;
  }
  return dark > 0.5 * beside;
}

// The darkest of ascending intensities, but for outliers.
const darkestOf = (ranked) => ranked[Math.floor(ranked.length / OUTLIERS)];

// The level of the air in ascending intensities, and whether there is any.
function levelOf(ranked, bright) {
  const darkest = darkestOf(ranked);
  const end = firstAbove(ranked, tissueThreshold(darkest, bright));
  // If everything is equally bright, all of it is tissue.
  if (end < LEAST_AIR * ranked.length || end === ranked.length) {
    return { level: darkest, hasAir: false };
  }
  const low = ranked[Math.floor(end / 20)];
  const middle = ranked[Math.floor(end / 2)];
  // Noise of magnitudes begins at the level; other noise has it in its middle.
  const isOneSided = middle - low > ONE_SIDED * (low - darkest);
  return { level: isOneSided ? darkest : middle, hasAir: true };
}

// The percentile of the tissue that tissue itself is measured by.
function brightEnd(ranked, level, firstGuess) {
  let bright = firstGuess;
  const last = ranked.length - 1;
  for (let round = 0; round < MOST_ROUNDS; round++) {
    const first = firstAbove(ranked, tissueThreshold(level, bright));
    if (first === ranked.length) break;
    const before = bright;
    bright = ranked[first + Math.floor(((last - first) * BRIGHT_PERCENTILE) / 100)];
    if (bright === before) break;
  }
  return bright;
}

// Count the ascending values that do not exceed a limit.
function firstAbove(ranked, limit) {
  let low = 0;
  let high = ranked.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranked[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
