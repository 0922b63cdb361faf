// Checks of a scan's intensities: contrast, saturation, noise, bands, edges, continuity.
// The same as segmentation/inference/checks/brightness.py, which has the reasons.
import { blurred } from "./filters.js";
import { above, below, chosen, countOf, fixed, medianOf, percent } from "./evidence.js";
import { AXES, moved } from "./grid.js";
import { withoutSurface } from "./masks.js";

/** @typedef {import("./evidence.js").Evidence} Evidence */
/** @typedef {import("./evidence.js").Finding} Finding */
/** @typedef {import("./grid.js").Triple} Triple */

export const BLOCK = 2;
export const VOXELS = BLOCK ** 3;
// From here on white matter and cortex differ enough to compare with.
const LEAST_DIFFERENCE = 1e-3;
// Less white matter, fewer places where it meets cortex, or less brain in a slice say nothing.
const ENOUGH_VOXELS = 1000;
// For a normal distribution: the median of absolute values, and the standard deviation of
// a voxel minus the mean of its six neighbours.
const NORMAL_MEDIAN = 0.6745;
const OF_NEIGHBOURS = Math.sqrt(1 + 1 / 6);
// Bands are looked for between two widths of a Gaussian, in blocks.
const NARROW = 2.0;
const WIDE = 4.0;
// Number of standard deviations at which a Gaussian is truncated.
const REACH = 2;
// A block with this many voxels of white matter is one of white matter.
const MOST_VOXELS = 6;
// Slices along x, y and z of the world.
const SLICES = ["sagittal", "coronal", "axial"];
const COORDINATES = ["x", "y", "z"];
// Slices with less than this share of the largest one's brain are not compared.
const LARGE = 0.25;
// A change is compared with those of so many slices on either side, but for its neighbours'.
const NEAR = 8;
const NEXT = 1;
// Fewer slices around say nothing.
const ENOUGH_SLICES = 6;

/** In T1 white matter is brighter than cortex. @returns {Finding[]} */
export function checkContrast(evidence) {
  const contrast = tissueContrast(evidence);
  if (contrast === null) return [];
  const reason = `white matter ${fixed(contrast, 2)} times as bright as cortex: ` +
    "not T1-weighted? then use the model any";
  return below(contrast, evidence.settings.limits.contrast, reason);
}

/** Brightness of white matter, of that of cortex; null where there is too little. */
export function tissueContrast({ brightness }) {
  if (!brightness) return null;
  return brightness.white / Math.max(brightness.cortex, 1e-6);
}

// White matter less cortex; null where that is nothing to compare with.
function differenceOf({ brightness }) {
  if (!brightness) return null;
  const difference = brightness.white - brightness.cortex;
  return Math.abs(difference) < LEAST_DIFFERENCE ? null : difference;
}

// ---- Saturation and noise ----

/** @param {Evidence} evidence @returns {Finding[]} */
export function checkSaturation(evidence) {
  const share = saturatedShare(evidence);
  if (share === null) return [];
  const reason = `${
    percent(share)
  } of the white matter has the same greatest value: saturated`;
  return above(share, evidence.settings.limits.saturated, reason);
}

/** Share of white matter that has its greatest value. */
export function saturatedShare({ image, whiteMatter }) {
  const white = chosen(image.data, whiteMatter);
  if (white.length < ENOUGH_VOXELS) return null;
  const greatest = white.reduce((most, value) => Math.max(most, value), -Infinity);
  const count = white.reduce((sum, value) => value === greatest ? sum + 1 : sum, 0);
  return count / white.length;
}

/** @param {Evidence} evidence @returns {Finding[]} */
export function checkNoise(evidence) {
  const noise = noiseShare(evidence);
  if (noise === null) return [];
  const reason = `noise of ${
    percent(noise)
  } of the difference between white matter and cortex`;
  return above(noise, evidence.settings.limits.noise, reason);
}

/** Standard deviation of noise inside white matter, of white matter less cortex. */
export function noiseShare(evidence) {
  const { image, whiteMatter, shape } = evidence;
  const difference = differenceOf(evidence);
  // Without the outermost voxels of the image, of which none is inside.
  const inside = withoutSurface(whiteMatter, shape);
  const count = countOf(inside);
  if (difference === null || count < ENOUGH_VOXELS) return null;
  const strides = [1, shape[0], shape[0] * shape[1]];
  const apart = new Float32Array(count);
  let to = 0;
  for (let at = 0; at < inside.length; at++) {
    if (!inside[at]) continue;
    let around = 0;
    for (const stride of strides) {
      around += image.data[at - stride] + image.data[at + stride];
    }
    apart[to++] = Math.abs(image.data[at] - around / 6);
  }
  const noise = medianOf(apart) / NORMAL_MEDIAN / OF_NEIGHBOURS;
  return noise / Math.abs(difference);
}

// ---- Bands and edges ----

/** @param {Evidence} evidence @returns {Finding[]} */
export function checkBands(evidence) {
  const bands = bandShare(evidence);
  if (bands === null) return [];
  const reason = `white matter is uneven by ${
    percent(bands)
  } of its difference from cortex: motion, a ghost image or a lesion?`;
  return above(bands, evidence.settings.limits.bands, reason);
}

/** Standard deviation inside white matter of what is 4 to 8 mm wide, of white less cortex. */
export function bandShare(evidence) {
  const { image, whiteMatter, shape } = evidence;
  const difference = differenceOf(evidence);
  if (difference === null) return null;
  const inside = withoutSurface(whiteMatter, shape);
  const weights = blockSums(inside, shape);
  const sums = blockSums(masked(image.data, inside), shape);
  const sides = blockShape(shape);
  const full = weights.map((weight) => weight >= MOST_VOXELS ? 1 : 0);
  if (countOf(full) < Math.floor(ENOUGH_VOXELS / VOXELS)) return null;
  const narrow = smoothed(sums, weights, sides, NARROW);
  const wide = smoothed(sums, weights, sides, WIDE);
  const apart = chosen(narrow.map((value, at) => value - wide[at]), full);
  return deviationOf(apart) / Math.abs(difference);
}

function deviationOf(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return Math.sqrt(squares / values.length);
}

/** @returns {Float32Array} values where a mask is set, 0 elsewhere */
export function masked(values, mask) {
  const out = new Float32Array(values.length);
  for (let at = 0; at < out.length; at++) if (mask[at]) out[at] = values[at];
  return out;
}

/** @returns {Triple} how many blocks of 2×2×2 voxels there are along each axis */
export function blockShape(shape) {
  const [x, y, z] = shape.map((side) => Math.floor(side / BLOCK));
  return [x, y, z];
}

/** @returns {Float32Array} sums of blocks; what is left over at the ends counts nowhere */
export function blockSums(values, shape) {
  const [X, Y] = shape;
  const [x, y, z] = blockShape(shape);
  const out = new Float32Array(x * y * z);
  let to = 0;
  for (let k = 0; k < z; k++) {
    for (let j = 0; j < y; j++) {
      for (let i = 0; i < x; i++, to++) {
        const first = BLOCK * (i + X * (j + Y * k));
        for (const at of [first, first + X, first + X * Y, first + X * Y + X]) {
          out[to] += values[at] + values[at + 1];
        }
      }
    }
  }
  return out;
}

/** Means of what has weight alone, over a Gaussian; where nothing has weight, the mean of all. */
export function smoothed(sums, weights, sides, width) {
  const total = blurred(sums, sides, width, REACH);
  const share = blurred(weights, sides, width, REACH);
  const sum = sums.reduce((all, value) => all + value, 0);
  const weight = weights.reduce((all, value) => all + value, 0);
  const everywhere = sum / Math.max(weight, 1);
  return total.map((value, at) => share[at] > 1e-3 ? value / share[at] : everywhere);
}

/** @param {Evidence} evidence @returns {Finding[]} */
export function checkEdges(evidence) {
  const sharpness = edgeSharpness(evidence);
  if (sharpness === null) return [];
  // Below 0 where noise is stronger than the edges.
  const reason = `edges of white matter are ${
    percent(Math.max(sharpness, 0))
  } sharp: blurred, thick slices or motion?`;
  return below(sharpness, evidence.settings.limits.edges, reason);
}

/** Mean step from white matter to cortex, of the difference; the least of the three axes. */
export function edgeSharpness(evidence) {
  const { image: { data }, whiteMatter: white, cortex, shape } = evidence;
  const difference = differenceOf(evidence);
  if (difference === null) return null;
  const steps = [];
  for (const axis of AXES) {
    let count = 0;
    let total = 0;
    eachPair(shape, axis, (at, next) => {
      if (white[at] && cortex[next]) total += data[at] - data[next];
      else if (cortex[at] && white[next]) total += data[next] - data[at];
      else return;
      count += 1;
    });
    if (count < ENOUGH_VOXELS) return null;
    steps.push(total / count / difference);
  }
  return Math.min(...steps);
}

// Call a function with each two voxels that are neighbours along an axis, and the first one's
// place there.
function eachPair(shape, axis, call) {
  const [X, Y, Z] = shape;
  const stride = [1, X, X * Y][axis];
  const last = [X, Y, Z];
  last[axis] -= 1;
  for (let k = 0; k < last[2]; k++) {
    for (let j = 0; j < last[1]; j++) {
      for (let i = 0; i < last[0]; i++) {
        const at = i + X * (j + Y * k);
        call(at, at + stride, axis === 0 ? i : axis === 1 ? j : k);
      }
    }
  }
}

// ---- Continuity ----

/**
 * No two neighbouring slices of the brain differ by much more or less than others around.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkContinuity(evidence) {
  const { jump, still } = evidence.settings.limits;
  const steps = stepsOf(evidence);
  if (!steps.length) return [];
  const largest = steps.reduce((most, step) => step.ratio > most.ratio ? step : most);
  const reason = `${largest.where}, slices differ ${
    fixed(largest.ratio, 1)
  } times as much as around: slices lost or shifted?`;
  const findings = above(largest.ratio, jump, reason);
  const least = steps.reduce((few, step) => step.ratio < few.ratio ? step : few);
  if (least.ratio < still) {
    const repeated = `${least.where}, slices do not differ: repeated slices?`;
    findings.push({ rejects: false, reason: repeated, structures: [] });
  }
  return findings;
}

// The changes between all neighbouring slices of the brain, in shares of the median of those
// around, and where they are.
function stepsOf(evidence) {
  const { affine } = evidence.image;
  const steps = [];
  for (const axis of AXES) {
    const changes = changesAlong(evidence, axis);
    const parts = AXES.map((world) => Math.abs(affine[4 * world + axis]));
    const world = parts.indexOf(Math.max(...parts));
    changes.forEach((change, number) => {
      if (!Number.isFinite(change)) return;
      const around = [
        ...changes.slice(Math.max(number - NEAR, 0), Math.max(number - NEXT, 0)),
        ...changes.slice(number + 1 + NEXT, number + 1 + NEAR),
      ].filter(Number.isFinite);
      const usual = medianOf(around);
      if (around.length < ENOUGH_SLICES || !(usual > 0)) return;
      const index = [0, 0, 0];
      index[axis] = number + 0.5;
      const placeMm = fixed(moved(index, affine)[world], 0);
      const where = `${SLICES[world]} at ${COORDINATES[world]} = ${placeMm} mm`;
      steps.push({ ratio: change / usual, where });
    });
  }
  return steps;
}

// The mean change from each slice to the next; NaN where there is little brain.
function changesAlong({ image: { data }, brain, shape }, axis) {
  const count = shape[axis] - 1;
  const voxels = new Float64Array(count);
  const sums = new Float64Array(count);
  eachPair(shape, axis, (at, next, number) => {
    if (!brain[at] || !brain[next]) return;
    voxels[number] += 1;
    sums[number] += Math.abs(Math.fround(data[next] - data[at]));
  });
  const least = Math.max(LARGE * Math.max(...voxels), ENOUGH_VOXELS);
  return sums.map((sum, n) => voxels[n] >= least ? sum / voxels[n] : NaN);
}
