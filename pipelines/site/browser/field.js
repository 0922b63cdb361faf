// Check that the field of view does not cut the brain. The same as
// segmentation/inference/checks/field.py.
import { above, fixed, some } from "./evidence.js";
import { AXES, beyond, cutGrid, inverse, padded, product } from "./grid.js";
import { eigen } from "./linear.js";
import { grownByFaces } from "./masks.js";

/** @typedef {import("./evidence.js").Evidence} Evidence */
/** @typedef {import("./evidence.js").Finding} Finding */
/** @typedef {import("./grid.js").Triple} Triple */

/**
 * Places in voxels, three numbers each, side by side.
 * @typedef {Float32Array} Points
 */

// Darker voxels are air.
export const AIR = 0.1;
// Labels that are so near to the end of the scan end there.
const NEAR_END = 2;
// Depth to which the plane is searched, and its thickness once it is found.
const SEARCHED_MM = 5.0;
const PLANE_MM = 1.0;
const ROUNDS_MM = [SEARCHED_MM, 3.0, 2.0];
// This many directions are about 8° apart on a sphere.
const DIRECTIONS = 700;
const TRIED = 8;
const FEWEST = 50;
// The smallest part of a structure in the plane that is worth its name.
const NAMED_MM2 = 60;

/**
 * Labels that end in one plane where the scan ends, or where it is as dark as air.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkFieldOfView(evidence) {
  const { area, structures } = findCut(evidence);
  const reason = `the field of view ends inside the brain: ${
    fixed(area / 100, 0)
  } cm² of ${some(structures)}`;
  return above(area, evidence.settings.limits.cut_mm2, reason, structures);
}

/**
 * The largest area of labels, in mm², in one plane at the end of the scan, and their names.
 * @param {Evidence} evidence
 * @returns {{ area: number, structures: string[] }}
 */
export function findCut(evidence, { withFluid = false } = {}) {
  const { settings, classes, image } = evidence;
  // All with one more voxel on each side: the scan holds nothing beyond its end.
  const shape = image.shape.map((side) => side + 2);
  const labelled = padded(withFluid ? classes : evidence.brain, image.shape, 1);
  const ends = endsOf(evidence, labelled, shape);
  if (ends.length / 3 < FEWEST) return { area: 0, structures: [] };
  const hull = outermost(labelled, shape);
  let area = -1;
  let best = [0, 0, 0];
  for (const direction of directionsOf(evidence, ends, hull)) {
    const found = countBelow(ends, hull, direction, PLANE_MM);
    if (found > area) {
      area = found;
      best = direction;
    }
  }
  const counts = new Float64Array(settings.classes.length);
  const [X, Y] = image.shape;
  eachBelow(ends, hull, best, PLANE_MM, ([x, y, z]) => {
    // Without the voxel that was padded.
    counts[classes[x - 1 + X * (y - 1 + Y * (z - 1))]] += 1;
  });
  // Structures that have a large part in the plane, the largest first; at least one.
  const order = [...counts.keys()].sort((one, other) => counts[other] - counts[one]);
  let named = order.filter((index) => counts[index] >= NAMED_MM2);
  if (!named.length) named = order.slice(0, 1);
  return { area, structures: named.map((index) => settings.classes[index].name) };
}

// Return the labels near the end of the scan, or near voxels as dark as air.
function endsOf({ image, scan }, labelled, shape) {
  const stop = image.shape.map((side) => side + 1);
  const outside = beyond(cutGrid(image, { start: [-1, -1, -1], stop }), scan);
  const isAir = Uint8Array.from(image.data, (value) => value < AIR ? 1 : 0);
  const dark = padded(isAir, image.shape, 1);
  const bare = outside.map((isSet, at) => isSet | dark[at]);
  const near = grownByFaces(bare, shape, NEAR_END);
  return placesWhere(labelled, shape, (at) => labelled[at] && near[at]);
}

/** @returns {Points} the places of an array at which something is so */
export function placesWhere(values, [X, Y], isWanted) {
  const found = [];
  for (let at = 0; at < values.length; at++) {
    if (!isWanted(at)) continue;
    found.push(at % X, Math.floor(at / X) % Y, Math.floor(at / (X * Y)));
  }
  return Float32Array.from(found);
}

// The first and the last voxel of each line along the first axis: the hull's corners too.
function outermost(mask, shape) {
  const [X, Y, Z] = shape;
  const found = [];
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      const line = X * (j + Y * k);
      let first = 0;
      while (first < X && !mask[line + first]) first += 1;
      if (first === X) continue;
      let last = X - 1;
      while (!mask[line + last]) last -= 1;
      found.push(first, j, k, last, j, k);
    }
  }
  return Float32Array.from(found);
}

// The scan's own axes both ways, and the normals of planes that hold most of the ends.
function directionsOf({ scan, image }, ends, hull) {
  const steps = product(inverse(scan.affine), image.affine);
  const axes = AXES.map((row) => unit(steps.slice(4 * row, 4 * row + 3)));
  const tried = onSphere(DIRECTIONS).map((direction) => ({
    direction,
    count: countBelow(ends, hull, direction, SEARCHED_MM),
  }));
  tried.sort((one, other) => one.count - other.count);
  const fits = tried.slice(-TRIED).map(({ direction }) =>
    fitted(ends, hull, direction)
  );
  return [...axes, ...axes.map((axis) => axis.map((part) => -part)), ...fits];
}

const unit = (vector) => vector.map((part) => part / Math.hypot(...vector));

// Return the distance of the outermost point along a direction.
function farthest(points, [a, b, c]) {
  let most = -Infinity;
  for (let at = 0; at < points.length; at += 3) {
    const along = a * points[at] + b * points[at + 1] + c * points[at + 2];
    if (along > most) most = along;
  }
  return most;
}

// Call a function with the points that are less than a depth below the outermost label.
function eachBelow(ends, hull, direction, depthMm, call) {
  const [a, b, c] = direction;
  const least = farthest(hull, direction) - depthMm;
  for (let at = 0; at < ends.length; at += 3) {
    const along = a * ends[at] + b * ends[at + 1] + c * ends[at + 2];
    if (along > least) call(ends.subarray(at, at + 3));
  }
}

function countBelow(ends, hull, direction, depthMm) {
  const [a, b, c] = direction;
  const least = farthest(hull, direction) - depthMm;
  let count = 0;
  for (let at = 0; at < ends.length; at += 3) {
    if (a * ends[at] + b * ends[at + 1] + c * ends[at + 2] > least) count += 1;
  }
  return count;
}

// A direction turned to the normal of the plane that the points near it lie in.
function fitted(ends, hull, direction) {
  for (const depthMm of ROUNDS_MM) {
    const near = [];
    eachBelow(ends, hull, direction, depthMm, (point) => near.push(point));
    if (near.length < FEWEST) break;
    const normal = leastSpread(near);
    const along = AXES.reduce((sum, axis) => sum + normal[axis] * direction[axis], 0);
    direction = normal.map((part) => part * Math.sign(along));
  }
  return direction;
}

// The direction in which points are least spread.
function leastSpread(points) {
  const means = AXES.map((axis) =>
    points.reduce((sum, point) => sum + point[axis], 0) / points.length
  );
  const squares = AXES.map(() => [0, 0, 0]);
  for (const point of points) {
    const off = AXES.map((axis) => point[axis] - means[axis]);
    for (const row of AXES) {
      for (const column of AXES) squares[row][column] += off[row] * off[column];
    }
  }
  const [, , last] = eigen(squares).vectors;
  return last;
}

/** @returns {Triple[]} unit vectors spread evenly: a spiral by the golden angle */
export function onSphere(count) {
  return Array.from({ length: count }, (_, n) => {
    const step = n + 0.5;
    const polar = Math.acos(1 - (2 * step) / count);
    const around = Math.PI * (1 + Math.sqrt(5)) * step;
    return [
      Math.cos(around) * Math.sin(polar),
      Math.sin(around) * Math.sin(polar),
      Math.cos(polar),
    ];
  });
}
