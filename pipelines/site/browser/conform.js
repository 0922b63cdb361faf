// Scans to the working grid, and what was found there back to the scan's own grid.
// The same as segmentation/space/conform.py, which says why.
import { BRIGHTEST, onWorkingScale, TISSUE } from "./background.js";
import {
  AXES,
  columnLengths,
  extentMm,
  isEmpty,
  mapBetween,
  occupiedBox,
  reordering,
  roundHalfToEven,
  uprightGrid,
  whole,
} from "./grid.js";
import { partsOf, withNeighbours, withoutSurface } from "./masks.js";
import {
  asScan,
  reordered,
  resampleImage,
  resampleMask,
  resampleProbabilities,
  upright,
} from "./resample.js";

/** @typedef {import("./grid.js").Volume} Volume */
/** @typedef {import("./grid.js").Grid} Grid */
/** @typedef {import("./grid.js").Box} Box */
/** @typedef {import("./grid.js").Triple} Triple */

const GRID_MM = 1.0;
const LARGEST = 256;
const SIDE_MULTIPLE = 16;
const SAME_MM = 1e-3;
const ROUNDING = 1e-6;
// A fraction of a voxel that does not count: voxel sizes of oblique headers are rounded.
const SAME_VOXELS = 0.01;

// Margin around the head.
const MARGIN_MM = 10.0;
const CELL_MM = 4.0;
const HEAD_HEIGHT_MM = 210.0;

/**
 * A scan on the working grid, float32: 0 in empty background, about 1 at the bright end.
 * @param {Volume} volume
 * @returns {Volume}
 */
export function conform(volume) {
  const content = onWorkingScale(upright(volume));
  const box = headBox(content);
  const head = extentMm(content, isEmpty(box) ? whole(content.shape) : box);
  const working = gridOver(head);
  const map = mapBetween(content, working);
  const data = resampleImage(content.data, content.shape, map, { staySharp: true });
  for (let at = 0; at < data.length; at++) {
    data[at] = Math.min(Math.max(data[at], 0), BRIGHTEST);
  }
  return { ...working, data };
}

/**
 * The most probable class in the scan's own space, of what was found on a part of the working
 * grid. `classes` has the most probable class of each of its voxels; `count` and `valuesOf` are
 * those of `resampleProbabilities`.
 * @param {Grid} working
 * @param {Grid} scan
 * @returns {Uint8Array}
 */
export function restore(classes, working, scan, count, valuesOf) {
  const map = mapBetween(working, uprightGrid(scan));
  // Every voxel of the scan is one of the working grid: the most probable class stays so.
  const copied = reordering(map) && reordered(classes, working.shape, map, Uint8Array);
  const found = copied ||
    resampleProbabilities(classes, working.shape, count, valuesOf, map);
  return asScan(found, scan);
}

/**
 * A mask on a part of the working grid, in the scan's own space.
 * @param {Uint8Array} mask
 * @param {Grid} working
 * @param {Grid} scan
 * @returns {Uint8Array}
 */
export function restoreMask(mask, working, scan) {
  const map = mapBetween(working, uprightGrid(scan));
  const copied = reordering(map) && reordered(mask, working.shape, map, Uint8Array);
  return asScan(copied || resampleMask(mask, working.shape, map), scan);
}

// ---- The working grid ----

/** @returns {Grid} the grid of 1 mm that lies over a head; it shares its lower faces */
function gridOver({ start: low, stop: high }) {
  const affine = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
  const shape = [0, 0, 0];
  for (const axis of AXES) {
    const sideMm = high[axis] - low[axis];
    const multiples = Math.ceil(sideMm / GRID_MM / SIDE_MULTIPLE - SAME_MM);
    shape[axis] = Math.min(multiples * SIDE_MULTIPLE, LARGEST);
    const sizeMm = shape[axis] * GRID_MM;
    let centre = (low[axis] + high[axis]) / 2;
    // Nothing of the brain is at the lower end of a head that is too tall: it is the top that stays.
    if (axis === 2 && sideMm > sizeMm) centre = high[axis] - sizeMm / 2;
    // From the head's face to the grid's there are whole voxels.
    const wantedVoxels = (centre - sizeMm / 2 - low[axis]) / GRID_MM;
    const shiftMm = roundHalfToEven(wantedVoxels - ROUNDING) * GRID_MM;
    // The centre of the first voxel is half a voxel behind the face.
    affine[4 * axis + 3] = low[axis] + shiftMm + GRID_MM / 2;
  }
  return { shape: [shape[0], shape[1], shape[2]], affine };
}

// ---- The head ----

/** @returns {Box} voxels of the head and a margin, which may reach beyond the image */
export function headBox(image) {
  const { data, shape, affine } = image;
  const spacing = columnLengths(affine);
  const bounds = AXES.map((axis) => {
    const step = Math.max(1, roundHalfToEven(CELL_MM / spacing[axis] - SAME_VOXELS));
    return cellBounds(data, shape, axis, step);
  });
  if (!bounds[0]) return whole(shape);
  const cells = headCells(data, shape, bounds);
  if (!cells) return whole(shape);
  const { mask, sides } = cells;
  keepAboveTheNeck(mask, sides, affine, bounds);
  const found = occupiedBox(mask, sides);
  const margins = spacing.map((mm) => Math.ceil(MARGIN_MM / mm - SAME_VOXELS));
  return {
    start: found.start.map((at, axis) => bounds[axis][at] - margins[axis]),
    stop: found.stop.map((at, axis) => bounds[axis][at] + margins[axis]),
  };
}

// Return the positions along an axis at which cells of `step` voxels begin, and the end of
// the last one; null without tissue. A cell begins at the plane that halves the tissue.
function cellBounds(data, shape, axis, step) {
  const stride = [1, shape[0], shape[0] * shape[1]][axis];
  const length = shape[axis];
  const counts = new Float64Array(length);
  for (let at = 0; at < data.length; at++) {
    if (data[at] > TISSUE) counts[Math.floor(at / stride) % length] += 1;
  }
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let middle = 0;
  let running = counts[0];
  while (running < total / 2) {
    middle += 1;
    running += counts[middle];
  }
  const ends = [];
  // The first cell may begin before the image, and the last one end behind it.
  const first = (middle % step) - (middle % step ? step : 0);
  for (let end = first; end < length + step; end += step) ends.push(end);
  return ends;
}

// Return the cells of the largest piece of tissue; null if there is none.
function headCells(data, shape, bounds) {
  const sides = bounds.map((ends) => ends.length - 1);
  const means = cellMeans(data, shape, bounds, sides);
  const tissue = Uint8Array.from(means, (mean) => mean > TISSUE ? 1 : 0);
  // One cell across is a wrap-around ghost, a marker or a nose, no head.
  const solid = withNeighbours(withoutSurface(tissue, sides), sides);
  const { parts, sizes } = partsOf(solid, sides);
  if (sizes.length < 2) return null;
  const largest = sizes.indexOf(Math.max(...sizes));
  const piece = Uint8Array.from(parts, (part) => part === largest ? 1 : 0);
  // Restore the surface of the head that opening removed.
  const mask = withNeighbours(piece, sides);
  for (let at = 0; at < mask.length; at++) mask[at] &= tissue[at];
  return { mask, sides };
}

// Beyond its end the image is 0.
function cellMeans(data, [X, Y, Z], bounds, sides) {
  const sums = new Float64Array(sides[0] * sides[1] * sides[2]);
  const cellOf = bounds.map((ends, axis) => {
    const step = ends[1] - ends[0];
    return Int32Array.from(
      { length: [X, Y, Z][axis] },
      (_, at) => Math.floor((at - ends[0]) / step),
    );
  });
  const [ofX, ofY, ofZ] = cellOf;
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      const row = sides[0] * (ofY[j] + sides[1] * ofZ[k]);
      for (let i = 0; i < X; i++, at++) sums[row + ofX[i]] += data[at];
    }
  }
  const voxels = bounds.reduce((count, ends) => count * (ends[1] - ends[0]), 1);
  return sums.map((sum) => sum / voxels);
}

// Takes the cells out that are not within a head's height of its top.
function keepAboveTheNeck(mask, [X, Y], affine, bounds) {
  const heightMm = (at) => {
    const i = bounds[0][at % X];
    const j = bounds[1][Math.floor(at / X) % Y];
    const k = bounds[2][Math.floor(at / (X * Y))];
    return affine[8] * i + affine[9] * j + affine[10] * k;
  };
  let topMm = -Infinity;
  mask.forEach((isSet, at) => {
    if (isSet) topMm = Math.max(topMm, heightMm(at));
  });
  mask.forEach((isSet, at) => {
    if (isSet && !(heightMm(at) > topMm - HEAD_HEIGHT_MM)) mask[at] = 0;
  });
}
