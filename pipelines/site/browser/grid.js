// Geometry of arrays: grids, boxes, and the map from one grid to another. The same as
// segmentation/grid.py and segmentation/space/grid_map.py.

/**
 * A matrix (4, 4), row after row: voxel indices to RAS mm, or to other voxel indices.
 * @typedef {number[]} Matrix
 */

/**
 * Three numbers, one for each axis.
 * @typedef {number[]} Triple
 */

/**
 * The voxels from `start` to before `stop` along each axis.
 * @typedef {{ start: Triple, stop: Triple }} Box
 */

/**
 * A regular grid of voxels.
 * @typedef {{ shape: Triple, affine: Matrix }} Grid
 */

/**
 * Voxels, the first axis fastest, and where they are.
 * @typedef {{ data: any, shape: Triple, affine: Matrix, notes?: string[] }} Volume
 */

/**
 * A target grid of `shape` voxels, and where each of them is in the source.
 * `matrix` takes target indices to source indices, which need not be whole.
 * @typedef {{ matrix: Matrix, shape: Triple }} GridMap
 */

// Positions that differ by less, in voxels, are the same.
const SAME_VOXELS = 0.01;
// A step of up to this many source voxels is left to linear interpolation alone.
const STEP_OF_ONE_POINT = 1.26;

export const AXES = [0, 1, 2];

// ---- Matrices ----

/**
 * Transform a point by a matrix.
 * @param {Triple} point
 * @param {Matrix} matrix
 * @returns {Triple}
 */
export function moved([x, y, z], matrix) {
  const along = (row) =>
    matrix[row] * x + matrix[row + 1] * y + matrix[row + 2] * z + matrix[row + 3];
  return [along(0), along(4), along(8)];
}

/** @returns {Matrix} the matrix that does what `second` does, and then `first` */
export function product(first, second) {
  const found = Array(16).fill(0);
  for (let row = 0; row < 4; row++) {
    for (let column = 0; column < 4; column++) {
      for (let k = 0; k < 4; k++) {
        found[4 * row + column] += first[4 * row + k] * second[4 * k + column];
      }
    }
  }
  return found;
}

/** @returns {number} the determinant of the first three rows and columns */
export function determinant(matrix) {
  const [a, b, c, , d, e, f, , g, h, i] = matrix;
  return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
}

/** @returns {Matrix} the inverse of an affine matrix */
export function inverse(matrix) {
  const [a, b, c, , d, e, f, , g, h, i] = matrix;
  const by = determinant(matrix);
  const linear = [
    [(e * i - f * h) / by, (c * h - b * i) / by, (b * f - c * e) / by],
    [(f * g - d * i) / by, (a * i - c * g) / by, (c * d - a * f) / by],
    [(d * h - e * g) / by, (b * g - a * h) / by, (a * e - b * d) / by],
  ];
  const shift = [matrix[3], matrix[7], matrix[11]];
  const found = [];
  for (const row of linear) {
    const back = row[0] * shift[0] + row[1] * shift[1] + row[2] * shift[2];
    found.push(...row, -back);
  }
  return [...found, 0, 0, 0, 1];
}

/** @returns {Triple} the length of the first three columns */
export function columnLengths(matrix) {
  const length = (axis) => Math.hypot(matrix[axis], matrix[4 + axis], matrix[8 + axis]);
  return [length(0), length(1), length(2)];
}

/** @returns {number} the nearest whole number; of two, the even one */
export function roundHalfToEven(value) {
  const low = Math.floor(value);
  const part = value - low;
  if (part < 0.5) return low;
  if (part > 0.5) return low + 1;
  return low % 2 === 0 ? low : low + 1;
}

// ---- Boxes ----

/** @returns {Box} all voxels of an array */
export function whole(shape) {
  return { start: [0, 0, 0], stop: [...shape] };
}

export function isEmpty({ start, stop }) {
  return AXES.some((axis) => start[axis] >= stop[axis]);
}

/** @returns {Triple} how many voxels a box has along each axis */
export function sidesOf({ start, stop }) {
  return [stop[0] - start[0], stop[1] - start[1], stop[2] - start[2]];
}

/** @returns {Box} the box with so many voxels more on each side, within an array */
export function grown(box, shape, voxels = 1) {
  return {
    start: box.start.map((first) => Math.max(first - voxels, 0)),
    stop: box.stop.map((end, axis) => Math.min(end + voxels, shape[axis])),
  };
}

/**
 * The smallest box around all that is not 0; empty if nothing is.
 * @param {Uint8Array} mask
 * @param {Triple} shape
 * @returns {Box}
 */
export function occupiedBox(mask, [X, Y, Z]) {
  const start = [X, Y, Z];
  const stop = [0, 0, 0];
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        if (!mask[at]) continue;
        if (i < start[0]) start[0] = i;
        if (j < start[1]) start[1] = j;
        if (k < start[2]) start[2] = k;
        if (i >= stop[0]) stop[0] = i + 1;
        if (j >= stop[1]) stop[1] = j + 1;
        if (k >= stop[2]) stop[2] = k + 1;
      }
    }
  }
  if (!stop[0]) return { start: [0, 0, 0], stop: [0, 0, 0] };
  return { start: [...start], stop: [...stop] };
}

/**
 * The voxels of a box, as an array of their own of the same type.
 * @param {any} data
 * @param {Triple} shape
 * @param {Box} box
 */
export function cutOut(data, [X, Y], box) {
  const [width, height, depth] = sidesOf(box);
  const out = new data.constructor(width * height * depth);
  let at = 0;
  for (let k = box.start[2]; k < box.stop[2]; k++) {
    for (let j = box.start[1]; j < box.stop[1]; j++) {
      const first = box.start[0] + X * (j + Y * k);
      out.set(data.subarray(first, first + width), at);
      at += width;
    }
  }
  return out;
}

/**
 * Every n-th voxel along each axis.
 * @param {{ data: any, shape: Triple }} volume
 * @param {Triple} steps
 * @returns {{ data: any, shape: Triple }} a copy
 */
export function everyNth({ data, shape }, [stepX, stepY, stepZ]) {
  const [X, Y, Z] = shape;
  const sides = [Math.ceil(X / stepX), Math.ceil(Y / stepY), Math.ceil(Z / stepZ)];
  const out = new data.constructor(sides[0] * sides[1] * sides[2]);
  let at = 0;
  for (let k = 0; k < Z; k += stepZ) {
    for (let j = 0; j < Y; j += stepY) {
      const row = X * (j + Y * k);
      for (let i = 0; i < X; i += stepX) out[at++] = data[row + i];
    }
  }
  return { data: out, shape: sides };
}

/**
 * An array with so many voxels more on each side, which are 0.
 * @param {any} data
 * @param {Triple} shape
 * @param {number} by
 */
export function padded(data, [X, Y, Z], by) {
  const width = X + 2 * by;
  const height = Y + 2 * by;
  const out = new data.constructor(width * height * (Z + 2 * by));
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      const first = X * (j + Y * k);
      const to = by + width * (j + by + height * (k + by));
      out.set(data.subarray(first, first + X), to);
    }
  }
  return out;
}

// ---- Grids ----

/** @returns {Grid} the grid of a part of the voxels */
export function cutGrid({ affine }, box) {
  const cut = [...affine];
  const first = moved(box.start, affine);
  for (const axis of AXES) cut[4 * axis + 3] = first[axis];
  return { shape: sidesOf(box), affine: cut };
}

/** @returns {Box} lowest and highest world coordinates of the outer faces of a box, in mm */
export function extentMm({ affine }, box) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (let corner = 0; corner < 8; corner++) {
    // A voxel reaches half a voxel to either side of its centre.
    const face = AXES.map((axis) => {
      const isEnd = (corner >> axis) & 1;
      return (isEnd ? box.stop[axis] : box.start[axis]) - 0.5;
    });
    moved(face, affine).forEach((place, axis) => {
      low[axis] = Math.min(low[axis], place);
      high[axis] = Math.max(high[axis], place);
    });
  }
  return { start: [...low], stop: [...high] };
}

/** @returns {Uint8Array} which voxels have their centre beyond the last voxels of another grid */
export function beyond(grid, other) {
  const toOther = product(inverse(other.affine), grid.affine);
  const [X, Y, Z] = grid.shape;
  const out = new Uint8Array(X * Y * Z);
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        const place = moved([i, j, k], toOther);
        // A voxel reaches half its size beyond its centre.
        const isBeyond = AXES.some((axis) =>
          place[axis] < -0.5 || place[axis] > other.shape[axis] - 0.5
        );
        out[at] = isBeyond ? 1 : 0;
      }
    }
  }
  return out;
}

export function voxelMm3({ affine }) {
  return Math.abs(determinant(affine));
}

/**
 * The world axis that each array axis runs along, and in which direction (1 or -1).
 * As nibabel has it: the axis that is most nearly one of the world's chooses first.
 * @returns {{ world: number, direction: number }[]}
 */
export function orientation({ affine }) {
  const lengths = columnLengths(affine);
  const part = (world, axis) => affine[4 * world + axis] / lengths[axis];
  const largest = (axis) =>
    Math.max(...AXES.map((world) => Math.abs(part(world, axis))));
  const found = [];
  const free = new Set(AXES);
  for (const axis of [...AXES].sort((one, other) => largest(other) - largest(one))) {
    let chosen = -1;
    for (const world of free) {
      if (chosen < 0 || Math.abs(part(world, axis)) > Math.abs(part(chosen, axis))) {
        chosen = world;
      }
    }
    free.delete(chosen);
    found[axis] = { world: chosen, direction: part(chosen, axis) < 0 ? -1 : 1 };
  }
  return found;
}

/** @returns {Grid} the same voxels in the same places, counted along RAS axes */
export function uprightGrid(grid) {
  const shape = [0, 0, 0];
  // The matrix that takes new voxel indices to old ones.
  const toGiven = Array(16).fill(0);
  toGiven[15] = 1;
  orientation(grid).forEach(({ world, direction }, axis) => {
    shape[world] = grid.shape[axis];
    toGiven[4 * axis + world] = direction;
    // An axis that is turned round counts from the old one's last voxel.
    if (direction < 0) toGiven[4 * axis + 3] = grid.shape[axis] - 1;
  });
  return { shape: [...shape], affine: product(grid.affine, toGiven) };
}

// ---- From one grid to another ----

/** @returns {GridMap} the map of a target grid into a source grid that share a world */
export function mapBetween(source, target) {
  const matrix = product(inverse(source.affine), target.affine);
  return { matrix, shape: target.shape };
}

/**
 * The source axis along each target axis, or null if the grids stand askew.
 * @returns {number[] | null}
 */
export function sourceAxes({ matrix, shape }) {
  const order = AXES.map((target) => {
    const steps = AXES.map((axis) => Math.abs(matrix[4 * axis + target]));
    return steps.indexOf(Math.max(...steps));
  });
  if (new Set(order).size < 3) return null;
  for (const target of AXES) {
    for (const axis of AXES) {
      // Drift of a line through the whole target along the other axes of the source.
      const drift = Math.abs(matrix[4 * axis + target]) * shape[target];
      if (axis !== order[target] && drift >= SAME_VOXELS) return null;
    }
  }
  return order;
}

/**
 * The source of each target axis, if each target voxel is a source voxel or beyond it; else null.
 * `start` is the source voxel at target voxel 0, which may be beyond the source.
 * @returns {{ axis: number, direction: number, start: number }[] | null}
 */
export function reordering(map) {
  const order = sourceAxes(map);
  if (!order) return null;
  const found = [];
  for (const target of AXES) {
    const axis = order[target];
    const step = map.matrix[4 * axis + target];
    const place = map.matrix[4 * axis + 3];
    const direction = Math.sign(step);
    const start = roundHalfToEven(place);
    // Error of the map at the far end of the axis.
    const error = Math.abs(step - direction) * map.shape[target] +
      Math.abs(place - start);
    if (error >= SAME_VOXELS) return null;
    found.push({ axis, direction, start });
  }
  return found;
}

/**
 * Along each target axis, where between -0.5 and 0.5 a voxel is sampled.
 * There are as many points as source voxels in a step, so that none is skipped.
 * @returns {number[][]}
 */
export function samplePoints({ matrix }) {
  return columnLengths(matrix).map((step) => {
    const count = Math.max(1, Math.ceil(step - (STEP_OF_ONE_POINT - 1)));
    // The middles of `count` equal parts of the voxel.
    return Array.from({ length: count }, (_, n) => (n + 0.5) / count - 0.5);
  });
}
