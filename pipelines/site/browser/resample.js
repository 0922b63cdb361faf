// From one grid of voxels to another: images and probabilities by linear interpolation.
// The same as segmentation/space/resample.py and interpolation.py.
//
// A target voxel that covers several source voxels is averaged over its own extent. Beyond the
// source all is background.
import {
  AXES,
  inverse,
  isEmpty,
  moved,
  occupiedBox,
  orientation,
  reordering,
  samplePoints,
  sourceAxes,
  uprightGrid,
  whole,
} from "./grid.js";

/** @typedef {import("./grid.js").Triple} Triple */
/** @typedef {import("./grid.js").GridMap} GridMap */
/** @typedef {import("./grid.js").Volume} Volume */

// An axis that is blurred by a smaller variance, in voxels², is left as it is.
const LEAST_BLUR = 1e-3;
// Voxels of the target that stand for all of it.
const SAMPLE_VOXELS = 10000;
// Shares that differ by less are a tie.
const TIE = 2 ** -16;
// Offset of sample points, so that points exactly between labels are no ties.
const NUDGE_VOXELS = [1.0e-3, 1.3e-3, 1.7e-3];
// A place that is a whole voxel but for its last digits.
const ROUNDING = 1e-6;
// Multiples of these three numbers fill a cube evenly (the roots of x⁴ = x + 1).
const EVEN = [0.8191725133961645, 0.6710436067037893, 0.5497004779019703];

/** @returns {Float32Array} an image on another grid; beyond its edge it is 0 */
export function resampleImage(data, shape, map, { staySharp = false } = {}) {
  const copied = reordered(data, shape, map, Float32Array);
  if (copied) return copied;
  let image = new Float32Array(data);
  if (staySharp) image = sharpened(image, shape, map);
  const axes = sourceAxes(map);
  if (axes) return interpolatedAlong(image, shape, map, axes);
  return interpolatedAskew(image, shape, map);
}

/** @returns {Volume} the same voxels in the same places, in an array with RAS axes */
export function upright(volume) {
  const { shape, affine } = uprightGrid(volume);
  const sources = [];
  orientation(volume).forEach(({ world, direction }, axis) => {
    const start = direction > 0 ? 0 : volume.shape[axis] - 1;
    sources[world] = { axis, direction, start };
  });
  const kind = volume.data.constructor;
  const data = copiedBy(sources, volume.data, volume.shape, shape, kind);
  return { ...volume, data, shape, affine };
}

/** @returns {any} voxels of an array with RAS axes, in the order that a scan's grid has */
export function asScan(data, scan) {
  const turned = uprightGrid(scan);
  const sources = [];
  orientation(scan).forEach(({ world, direction }, axis) => {
    const start = direction > 0 ? 0 : turned.shape[world] - 1;
    sources[axis] = { axis: world, direction, start };
  });
  return copiedBy(sources, data, turned.shape, scan.shape, data.constructor);
}

/**
 * The data with axes exchanged, turned round, cut and padded with 0, if the map asks no more.
 * Null if anything must be interpolated.
 */
export function reordered(data, shape, map, kind) {
  const sources = reordering(map);
  return sources && copiedBy(sources, data, shape, map.shape, kind);
}

function copiedBy(sources, data, shape, target, kind) {
  const [X, Y, Z] = target;
  const out = new kind(X * Y * Z);
  const strides = [1, shape[0], shape[0] * shape[1]];
  // For each target axis: the source's positions, and which of its voxels exist.
  const axes = sources.map(({ axis, direction, start }, n) => {
    const ends = direction > 0
      ? [-start, shape[axis] - start]
      : [start - shape[axis] + 1, start + 1];
    return {
      step: direction * strides[axis],
      first: start * strides[axis],
      low: Math.max(0, ends[0]),
      high: Math.min(target[n], ends[1]),
    };
  });
  const [x, y, z] = axes;
  for (let k = z.low; k < z.high; k++) {
    for (let j = y.low; j < y.high; j++) {
      let from = x.first + y.first + z.first + k * z.step + j * y.step + x.low * x.step;
      let at = x.low + X * (j + Y * k);
      for (let i = x.low; i < x.high; i++, at++, from += x.step) out[at] = data[from];
    }
  }
  return out;
}

// ---- Sharpness ----

/**
 * Variance that linear interpolation blurs by along each source axis, in voxels².
 * A value at part f of the way from one voxel to the next has the variance f (1 - f).
 */
export function blurOf(map) {
  const points = samplePoints(map);
  const sums = [0, 0, 0];
  for (let n = 1; n <= SAMPLE_VOXELS; n++) {
    const target = AXES.map((axis) => {
      const within = (n * EVEN[axis]) % 1;
      const voxel = Math.floor(within * map.shape[axis]);
      return voxel + points[axis][n % points[axis].length];
    });
    moved(target, map.matrix).forEach((position, axis) => {
      const part = position - Math.floor(position);
      sums[axis] += part * (1 - part);
    });
  }
  return sums.map((sum) => sum / SAMPLE_VOXELS);
}

// An image that interpolation blurs back to what it was.
function sharpened(image, shape, map) {
  blurOf(map).forEach((variance, axis) => {
    if (variance >= LEAST_BLUR) image = sharpenedAlong(image, shape, axis, variance);
  });
  return image;
}

// Less half the variance times each voxel's difference from its two neighbours. Beyond an edge the
// outermost voxel goes on.
function sharpenedAlong(image, shape, axis, variance) {
  const half = variance / 2;
  const stride = [1, shape[0], shape[0] * shape[1]][axis];
  const length = shape[axis];
  const out = new Float32Array(image.length);
  for (let at = 0; at < image.length; at++) {
    const place = Math.floor(at / stride) % length;
    const before = place > 0 ? image[at - stride] : image[at];
    const after = place < length - 1 ? image[at + stride] : image[at];
    out[at] = image[at] * (1 + variance) - half * (before + after);
  }
  return out;
}

// ---- Grids with common axes ----

// One axis after the other: each has few source voxels for a target voxel.
function interpolatedAlong(image, shape, map, axes) {
  let values = image;
  const sides = [...shape];
  for (const target of AXES) {
    const axis = axes[target];
    const shares = sharesAlong(map, target, axis, shape[axis]);
    values = weightedAlong(values, sides, axis, shares);
    sides[axis] = map.shape[target];
  }
  const sources = axes.map((axis) => ({ axis, direction: 1, start: 0 }));
  return copiedBy(sources, values, sides, map.shape, Float32Array);
}

/**
 * For each target voxel along an axis, the source voxels that it is made of, and their shares.
 * @returns {{ voxels: number[], weights: number[] }[]}
 */
function sharesAlong(map, target, axis, length) {
  const { matrix, shape } = map;
  const step = matrix[4 * axis + target];
  const start = matrix[4 * axis + 3];
  const points = samplePoints(map)[target];
  const found = [];
  for (let voxel = 0; voxel < shape[target]; voxel++) {
    const shares = new Map();
    for (const point of points) {
      const position = start + step * (voxel + point);
      const lower = Math.floor(position);
      const part = position - lower;
      shares.set(lower, (shares.get(lower) || 0) + (1 - part) / points.length);
      shares.set(lower + 1, (shares.get(lower + 1) || 0) + part / points.length);
    }
    const inside = [...shares].filter(([at]) => at >= 0 && at < length);
    found.push({
      voxels: inside.map(([at]) => at),
      weights: inside.map(([, weight]) => weight),
    });
  }
  return found;
}

function weightedAlong(values, shape, axis, shares) {
  const inner = axis === 0 ? 1 : axis === 1 ? shape[0] : shape[0] * shape[1];
  const length = shape[axis];
  const outer = values.length / (inner * length);
  const out = new Float32Array(outer * shares.length * inner);
  for (let block = 0; block < outer; block++) {
    shares.forEach(({ voxels, weights }, voxel) => {
      const to = (block * shares.length + voxel) * inner;
      for (let n = 0; n < voxels.length; n++) {
        const from = (block * length + voxels[n]) * inner;
        const weight = weights[n];
        for (let at = 0; at < inner; at++) out[to + at] += weight * values[from + at];
      }
    });
  }
  return out;
}

// ---- Any other grids ----

function interpolatedAskew(image, shape, map) {
  const [X, Y, Z] = map.shape;
  const out = new Float32Array(X * Y * Z);
  const cell = new Cell(map, shape);
  const points = offsetsOf(map);
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        let sum = 0;
        for (const point of points) {
          cell.locate(i, j, k, point);
          for (let n = 0; n < cell.count; n++) {
            sum += cell.shares[n] * image[cell.places[n]];
          }
        }
        out[at] = sum / points.length;
      }
    }
  }
  return out;
}

// All sample points of a target voxel, as offsets from its centre.
function offsetsOf(map) {
  const [along, across, up] = samplePoints(map);
  const found = [];
  for (const x of along) {
    for (const y of across) {
      for (const z of up) found.push([x, y, z]);
    }
  }
  return found;
}

// The source voxels around a sample point of a target voxel, and their shares in it; what is beyond
// the edge has none. One object for all points: there are millions.
class Cell {
  constructor({ matrix }, shape) {
    this.matrix = matrix;
    this.shape = shape;
    this.places = new Int32Array(8);
    this.shares = new Float64Array(8);
    this.count = 0;
  }

  locate(i, j, k, offset) {
    const { matrix: m } = this;
    const a = i + offset[0];
    const b = j + offset[1];
    const c = k + offset[2];
    this.around(
      m[0] * a + m[1] * b + m[2] * c + m[3],
      m[4] * a + m[5] * b + m[6] * c + m[7],
      m[8] * a + m[9] * b + m[10] * c + m[11],
    );
  }

  around(x, y, z) {
    const [X, Y, Z] = this.shape;
    this.count = 0;
    if (x <= -1 || y <= -1 || z <= -1 || x >= X || y >= Y || z >= Z) return;
    const i = Math.floor(x);
    const j = Math.floor(y);
    const k = Math.floor(z);
    for (let c = 0; c < 2; c++) {
      if (k + c < 0 || k + c >= Z) continue;
      const alongZ = c ? z - k : 1 - (z - k);
      for (let b = 0; b < 2; b++) {
        if (j + b < 0 || j + b >= Y) continue;
        const alongY = alongZ * (b ? y - j : 1 - (y - j));
        for (let a = 0; a < 2; a++) {
          if (i + a < 0 || i + a >= X) continue;
          const share = alongY * (a ? x - i : 1 - (x - i));
          if (share === 0) continue;
          this.places[this.count] = i + a + X * (j + b + Y * (k + c));
          this.shares[this.count] = share;
          this.count += 1;
        }
      }
    }
  }
}

// ---- Probabilities ----

/**
 * The most probable class on another grid; beyond the edge it is background.
 *
 * `classes` has the most probable class of each source voxel. Where all voxels around a target
 * voxel have the same one, it is that: a mean of values keeps which one is the largest. Elsewhere
 * `valuesOf(place, sums, share)` adds a share of a voxel's probabilities to `sums`.
 * @returns {Uint8Array}
 */
export function resampleProbabilities(classes, shape, count, valuesOf, map) {
  const [X, Y, Z] = map.shape;
  const out = new Uint8Array(X * Y * Z);
  const cell = new Cell(map, shape);
  const points = offsetsOf(map);
  const sums = new Float64Array(count);
  const reached = reachedBox(map, whole(shape));
  for (let k = reached.start[2]; k < reached.stop[2]; k++) {
    for (let j = reached.start[1]; j < reached.stop[1]; j++) {
      for (let i = reached.start[0]; i < reached.stop[0]; i++) {
        let found = agreedAround(cell, classes, points, i, j, k);
        if (found === MIXED) {
          addShares(cell, valuesOf, points, i, j, k, sums);
          found = indexOfLargest(sums);
        }
        out[i + X * (j + Y * k)] = found;
      }
    }
  }
  return out;
}

const MIXED = 255;
// Shares of voxels sum to 1 but for their last digits.
const ALL = 1 - 1e-9;

// The one class around all sample points of a target voxel, or MIXED.
function agreedAround(cell, classes, points, i, j, k) {
  let found = -1;
  for (const point of points) {
    cell.locate(i, j, k, point);
    let known = 0;
    for (let n = 0; n < cell.count; n++) {
      const label = classes[cell.places[n]];
      if (found < 0) found = label;
      if (label !== found) return MIXED;
      known += cell.shares[n];
    }
    // Voxels beyond the edge are background.
    if (known < ALL) {
      if (found > 0) return MIXED;
      found = 0;
    }
  }
  return found;
}

// The probabilities of all sample points of a target voxel, into `sums`.
function addShares(cell, valuesOf, points, i, j, k, sums) {
  sums.fill(0);
  let known = 0;
  for (const point of points) {
    cell.locate(i, j, k, point);
    for (let n = 0; n < cell.count; n++) {
      valuesOf(cell.places[n], sums, cell.shares[n]);
      known += cell.shares[n];
    }
  }
  sums[0] += points.length - known;
}

function indexOfLargest(values) {
  let best = 0;
  for (let n = 1; n < values.length; n++) {
    if (values[n] > values[best]) best = n;
  }
  return best;
}

// The target voxels that a box of the source touches; it may be a little too large.
function reachedBox(map, box) {
  const { low, high } = touched(map, box);
  return {
    start: low.map((place) => Math.max(0, Math.floor(place))),
    stop: high.map((place, axis) => Math.min(map.shape[axis], Math.ceil(place) + 1)),
  };
}

// Return the range of target indices that a box of the source contributes to.
function touched(map, box) {
  const toTarget = inverse(map.matrix);
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (let corner = 0; corner < 8; corner++) {
    // Linear interpolation carries a voxel's value as far as its neighbours' centres.
    const end = AXES.map((axis) =>
      (corner >> axis) & 1 ? box.stop[axis] : box.start[axis] - 1
    );
    moved(end, toTarget).forEach((place, axis) => {
      low[axis] = Math.min(low[axis], place - 0.5);
      high[axis] = Math.max(high[axis], place + 0.5);
    });
  }
  return { low, high };
}

// ---- Masks ----

/**
 * A mask on another grid: where most of a voxel is set. Beyond the edge nothing is.
 *
 * As labels are in Python, voxels are looked at a thousandth of a voxel to one side, in turn as on
 * a chessboard: points just between set and not set are no ties then.
 * @param {Uint8Array} mask
 * @param {Triple} shape
 * @param {GridMap} map
 * @returns {Uint8Array}
 */
export function resampleMask(mask, shape, map) {
  const [X, Y, Z] = map.shape;
  const out = new Uint8Array(X * Y * Z);
  const inside = occupiedBox(mask, shape);
  if (isEmpty(inside)) return out;
  const points = offsetsOf(map);
  const cell = new Cell(map, shape);
  const nudged = [1, -1].map((side) => new Cell(nudgedMap(map, side), shape));
  const { low } = touched(map, inside);
  const first = low.reduce((sum, place) => sum + Math.floor(place + ROUNDING), 0);
  const reached = reachedBox(map, inside);
  for (let k = reached.start[2]; k < reached.stop[2]; k++) {
    for (let j = reached.start[1]; j < reached.stop[1]; j++) {
      for (let i = reached.start[0]; i < reached.stop[0]; i++) {
        let found = agreedAround(cell, mask, points, i, j, k);
        if (found === MIXED) {
          const isOdd = Math.abs(i + j + k - first) % 2;
          const share = shareSet(nudged[isOdd], mask, points, i, j, k);
          // Compare whole numbers of parts, so that a tie is not set.
          found = Math.round(share / TIE) > Math.round((1 - share) / TIE) ? 1 : 0;
        }
        out[i + X * (j + Y * k)] = found;
      }
    }
  }
  return out;
}

function nudgedMap({ matrix, shape }, side) {
  const moved = [...matrix];
  for (const axis of AXES) moved[4 * axis + 3] += side * NUDGE_VOXELS[axis];
  return { matrix: moved, shape };
}

// The share of a target voxel that is set, by its sample points.
function shareSet(cell, mask, points, i, j, k) {
  let sum = 0;
  for (const point of points) {
    cell.locate(i, j, k, point);
    for (let n = 0; n < cell.count; n++) {
      if (mask[cell.places[n]]) sum += cell.shares[n];
    }
  }
  return sum / points.length;
}
