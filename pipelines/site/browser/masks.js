// Masks (a byte a voxel, the first axis fastest) grown, opened and divided into parts.
// What SciPy's ndimage does for segmentation/: beyond the edge nothing is set.

/** @typedef {import("./grid.js").Triple} Triple */

/**
 * A mask dilated by a number of voxels along each of its axes.
 * @param {Uint8Array} mask
 * @param {Triple} shape
 * @param {Triple} reach
 */
export function dilated(mask, shape, [alongX, alongY, alongZ]) {
  const once = spread(mask, shape, 0, alongX, 1);
  const twice = spread(once, shape, 1, alongY, 1);
  return spread(twice, shape, 2, alongZ, 1);
}

/**
 * A mask eroded by a number of voxels along each axis, and at the edges.
 * @param {Uint8Array} mask
 * @param {Triple} shape
 * @param {Triple} reach
 */
export function eroded(mask, shape, [alongX, alongY, alongZ]) {
  const once = spread(mask, shape, 0, alongX, 0);
  const twice = spread(once, shape, 1, alongY, 0);
  return spread(twice, shape, 2, alongZ, 0);
}

// Each voxel becomes `value` that has such a voxel within reach along an axis. What is beyond the
// edge is 0.
function spread(mask, shape, axis, reach, value) {
  if (!reach) return mask;
  const stride = [1, shape[0], shape[0] * shape[1]][axis];
  const length = shape[axis];
  const out = new Uint8Array(mask.length).fill(1 - value);
  const lines = mask.length / length;
  for (let line = 0; line < lines; line++) {
    const first = (line % stride) + Math.floor(line / stride) * stride * length;
    // Distance from the last voxel with the value, counted in both directions.
    for (const isBackward of [false, true]) {
      let since = value ? reach + 1 : 0;
      for (let n = 0; n < length; n++) {
        const at = first + (isBackward ? length - 1 - n : n) * stride;
        since = mask[at] === value ? 0 : since + 1;
        if (since <= reach) out[at] = value;
      }
    }
  }
  return out;
}

/** @returns {Uint8Array} a mask with all that shares a face with it */
export function withNeighbours(mask, shape) {
  const out = mask.slice();
  for (const axis of [0, 1, 2]) {
    const along = spread(mask, shape, axis, 1, 1);
    for (let at = 0; at < out.length; at++) out[at] |= along[at];
  }
  return out;
}

/** @returns {Uint8Array} the voxels of a mask whose six neighbours are all in it */
export function withoutSurface(mask, shape) {
  const out = mask.slice();
  for (const axis of [0, 1, 2]) {
    const along = spread(mask, shape, axis, 1, 0);
    for (let at = 0; at < out.length; at++) out[at] &= along[at];
  }
  return out;
}

/**
 * The parts of a mask whose voxels share a face, numbered from 1 in the order of their first
 * voxels along the last axis, as SciPy meets them.
 * @returns {{ parts: Int32Array, sizes: number[] }} `sizes[n]` is that of part n; sizes[0] is 0
 */
export function partsOf(mask, [X, Y, Z]) {
  const parts = new Int32Array(mask.length);
  const sizes = [0];
  const waiting = [];
  const visit = (at) => {
    if (!mask[at] || parts[at]) return;
    parts[at] = sizes.length;
    waiting.push(at);
  };
  for (let i = 0; i < X; i++) {
    for (let j = 0; j < Y; j++) {
      for (let k = 0; k < Z; k++) {
        const seed = i + X * (j + Y * k);
        if (!mask[seed] || parts[seed]) continue;
        visit(seed);
        let size = 0;
        while (waiting.length) {
          const at = waiting.pop();
          size += 1;
          const x = at % X;
          const y = Math.floor(at / X) % Y;
          const z = Math.floor(at / (X * Y));
          if (x > 0) visit(at - 1);
          if (x < X - 1) visit(at + 1);
          if (y > 0) visit(at - X);
          if (y < Y - 1) visit(at + X);
          if (z > 0) visit(at - X * Y);
          if (z < Z - 1) visit(at + X * Y);
        }
        sizes.push(size);
      }
    }
  }
  return { parts, sizes };
}

/** @returns {Uint8Array} the largest of the parts; a mask that is empty stays so */
export function largestPart(mask, shape) {
  const { parts, sizes } = partsOf(mask, shape);
  const largest = sizes.indexOf(Math.max(...sizes));
  return mask.map((_, at) => largest && parts[at] === largest ? 1 : 0);
}

/** @returns {Uint8Array} a mask with all that it encloses */
export function withoutHoles(mask, shape) {
  return reachedFromOutside(mask, shape, 0).map((isOutside) => isOutside ? 0 : 1);
}

/**
 * Return the voxels with a value that are connected to the surface across faces.
 * @returns {Uint8Array}
 */
export function reachedFromOutside(data, shape, value) {
  const [X, Y, Z] = shape;
  const found = new Uint8Array(data.length);
  const waiting = [];
  const visit = (i, j, k) => {
    if (i < 0 || j < 0 || k < 0 || i >= X || j >= Y || k >= Z) return;
    const at = i + X * (j + Y * k);
    if (found[at] || data[at] !== value) return;
    found[at] = 1;
    waiting.push(at);
  };
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      const isEdge = k === 0 || k === Z - 1 || j === 0 || j === Y - 1;
      for (let i = 0; i < X; i += isEdge || X === 1 ? 1 : X - 1) visit(i, j, k);
    }
  }
  while (waiting.length) {
    const at = waiting.pop();
    const i = at % X;
    const j = Math.floor(at / X) % Y;
    const k = Math.floor(at / (X * Y));
    visit(i - 1, j, k);
    visit(i + 1, j, k);
    visit(i, j - 1, k);
    visit(i, j + 1, k);
    visit(i, j, k - 1);
    visit(i, j, k + 1);
  }
  return found;
}

// ---- By faces, and by balls ----

/** @returns {Uint8Array} a mask with all that is so many steps across faces away */
export function grownByFaces(mask, shape, steps) {
  let found = mask;
  for (let step = 0; step < steps; step++) found = withNeighbours(found, shape);
  return found;
}

/** @returns {Uint8Array} a mask without so many layers of its surface */
export function shrunkByFaces(mask, shape, steps) {
  let found = mask;
  for (let step = 0; step < steps; step++) found = withoutSurface(found, shape);
  return found;
}

/**
 * The part of a mask that balls inside it can cover, of a radius in voxels.
 * @param {Uint8Array} mask
 * @param {Triple} shape
 * @param {number} radius
 * @returns {Uint8Array}
 */
export function opened(mask, [X, Y, Z], radius) {
  const ball = ballOf(radius);
  const out = new Uint8Array(mask.length);
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        const isNearEdge = Math.min(i, j, k, X - 1 - i, Y - 1 - j, Z - 1 - k) < radius;
        if (!mask[at] || isNearEdge) continue;
        const fits = ball.every(([x, y, z]) => mask[at + x + X * (y + Y * z)]);
        if (!fits) continue;
        for (const [x, y, z] of ball) out[at + x + X * (y + Y * z)] = 1;
      }
    }
  }
  return out;
}

// The steps from a ball's middle to its voxels, the farthest first: there a mask ends soonest.
function ballOf(radius) {
  const found = [];
  for (let z = -radius; z <= radius; z++) {
    for (let y = -radius; y <= radius; y++) {
      for (let x = -radius; x <= radius; x++) {
        if (x * x + y * y + z * z <= radius * radius) found.push([x, y, z]);
      }
    }
  }
  const length = (step) => Math.hypot(...step);
  return found.sort((one, other) => length(other) - length(one));
}
