// The structures' surfaces as meshes, as the page's picture takes them.
// The same as segmentation/rendering/mesh.py and `_surfaces` of pipelines/view/voxels.py: a vertex in
// each cell of eight voxels that the surface passes, and a quad around each pair of voxels that it
// parts.
import { blurred } from "./filters.js";
import { AXES, cutOut, everyNth, grown, moved, sidesOf } from "./grid.js";

/** @typedef {import("./grid.js").Volume} Volume */
/** @typedef {import("./grid.js").Triple} Triple */

/**
 * Triangles that face outwards; vertices in RAS mm.
 * @typedef {{ vertices: Float32Array, faces: Uint32Array }} Surface
 */

// Surfaces of larger boxes are of every other voxel: what a page can turn round smoothly.
const LARGE_BOX = 60 ** 3;
// Number of standard deviations at which a Gaussian is truncated, as in SciPy.
const REACH = 4;
// The eight corners of a cell, and its twelve edges as pairs of corners with their axis.
const CORNERS = [0, 1, 2, 3, 4, 5, 6, 7].map((
  n,
) => [n & 1, (n >> 1) & 1, (n >> 2) & 1]);
const EDGES = [0, 1, 2, 3, 4, 5, 6, 7].flatMap((n) =>
  AXES.filter((axis) => !((n >> axis) & 1)).map((axis) => [n, n | (1 << axis), axis])
);

/**
 * For each structure its class and counts (3 uint32), vertices (float32) and faces (uint32).
 * @param {Volume} labels classes, on RAS axes
 * @param {number} count of classes
 * @returns {ArrayBuffer}
 */
export function surfacesOf(labels, count) {
  const parts = [];
  boxesOf(labels, count).forEach((box, index) => {
    if (!box) return;
    const { vertices, faces } = surfaceOf(labels, index, grown(box, labels.shape, 2));
    if (!faces.length) return;
    const head = Uint32Array.of(index, vertices.length / 3, faces.length / 3);
    parts.push(head, vertices, faces);
  });
  const bytes = parts.reduce((sum, part) => sum + part.byteLength, 0);
  const out = new Uint8Array(bytes);
  let at = 0;
  for (const part of parts) {
    out.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at);
    at += part.byteLength;
  }
  return out.buffer;
}

// The box around each class but background; null where it is nowhere.
function boxesOf({ data, shape }, count) {
  const [X, Y, Z] = shape;
  const boxes = Array(count).fill(null);
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        const index = data[at];
        if (!index) continue;
        boxes[index] ??= { start: [X, Y, Z], stop: [0, 0, 0] };
        const { start, stop } = boxes[index];
        [i, j, k].forEach((place, axis) => {
          if (place < start[axis]) start[axis] = place;
          if (place >= stop[axis]) stop[axis] = place + 1;
        });
      }
    }
  }
  return boxes;
}

// The surface of one structure, smoothed; coarser in a large box. Of a structure of a voxel or
// two, which smoothing would take away, it is that of the voxels.
function surfaceOf(labels, index, box) {
  const part = cutOut(labels.data, labels.shape, box);
  const shape = sidesOf(box);
  const mask = new Float32Array(part.length);
  for (let at = 0; at < mask.length; at++) mask[at] = part[at] === index ? 1 : 0;
  let step = mask.length > LARGE_BOX ? 2 : 1;
  const smooth = { data: blurred(mask, shape, 0.5 * step, REACH), shape };
  let share = everyNth(smooth, [step, step, step]);
  if (!share.data.some((value) => value > 0.5)) {
    step = 1;
    share = { data: mask, shape };
  }
  const toVoxels = (place) => AXES.map((axis) => place[axis] * step + box.start[axis]);
  return surfaceNet(share, (place) => moved(toVoxels(place), labels.affine));
}

/**
 * The surface between shares above a half and others, closed at the edges.
 * @param {{ data: Float32Array, shape: Triple }} share
 * @param {(place: Triple) => Triple} toMm from voxel indices
 * @returns {Surface}
 */
function surfaceNet({ data, shape }, toMm) {
  // A voxel more on each side, where nothing is.
  const [X, Y, Z] = shape.map((side) => side + 2);
  const padded = new Float32Array(X * Y * Z).fill(-1);
  let from = 0;
  for (let k = 1; k < Z - 1; k++) {
    for (let j = 1; j < Y - 1; j++) {
      for (let i = 1; i < X - 1; i++) padded[i + X * (j + Y * k)] = data[from++] - 0.5;
    }
  }
  const strides = [1, X, X * Y];
  const offsets = CORNERS.map(([a, b, c]) => a + X * (b + Y * c));
  const vertices = [];
  // The number of the vertex in each cell.
  const numbers = new Int32Array(padded.length).fill(-1);
  const quads = [];
  for (let k = 0; k < Z - 1; k++) {
    for (let j = 0; j < Y - 1; j++) {
      for (let i = 0; i < X - 1; i++) {
        const cell = i + X * (j + Y * k);
        const within = crossing(padded, cell, offsets);
        if (!within) continue;
        numbers[cell] = vertices.length / 3;
        vertices.push(
          ...toMm([i + within[0] - 1, j + within[1] - 1, k + within[2] - 1]),
        );
      }
    }
  }
  for (const axis of AXES) {
    const along = strides[axis];
    const b = strides[(axis + 1) % 3];
    const c = strides[(axis + 2) % 3];
    for (let voxel = 0; voxel + along < padded.length; voxel++) {
      const isInside = padded[voxel] > 0;
      if (isInside === padded[voxel + along] > 0) continue;
      // Counter-clockwise as seen from where the axis grows to.
      const around = [voxel, voxel - b, voxel - b - c, voxel - c].map((cell) =>
        numbers[cell]
      );
      quads.push(isInside ? around : around.reverse());
    }
  }
  // Each quad becomes two triangles.
  const faces = quads.flatMap((
    [one, two, three, four],
  ) => [one, two, three, one, three, four]);
  return { vertices: Float32Array.from(vertices), faces: Uint32Array.from(faces) };
}

// The mean place within a cell where its edges cross the surface; null where none does.
function crossing(values, cell, offsets) {
  const total = [0, 0, 0];
  let count = 0;
  for (const [first, second, axis] of EDGES) {
    const low = values[cell + offsets[first]];
    const high = values[cell + offsets[second]];
    if (low > 0 === high > 0) continue;
    count += 1;
    for (const each of AXES) total[each] += CORNERS[first][each];
    // Position of the zero crossing along the edge, by linear interpolation.
    total[axis] += low / (low - high);
  }
  return count ? total.map((sum) => sum / count) : null;
}
