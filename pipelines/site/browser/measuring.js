// Inside of the skull, and volumes of the whole brain. The same as
// segmentation/inference/measuring.py, and find_inside of prediction.py.
import { checkContinuity } from "./brightness.js";
import { countOf, some } from "./evidence.js";
import { findCut, onSphere, placesWhere } from "./field.js";
import { AXES, everyNth, moved, voxelMm3 } from "./grid.js";
import { dilated, largestPart, withoutHoles } from "./masks.js";
import { TISSUE } from "./background.js";

/** @typedef {import("./evidence.js").Evidence} Evidence */
/** @typedef {import("./grid.js").Triple} Triple */

// Skull and scalp are between these distances from the space inside the skull, in voxels of 1 mm.
const SKULL_FROM = 3;
const SKULL_TO = 9;
// Skull is looked for on the sides above the middle, of which each is this wide, and at the top.
const AROUND = 8;
const STEEP = 0.5;
const TOP = 0.87;
// Directions in which the end of tissue around the brain is searched, the maximum
// distance, and the step of two voxels.
const DIRECTIONS = 400;
const REACH_MM = 25.0;
const STEP = 2;
const STEPS = [STEP, STEP, STEP];
// Tissue ends evenly where it ends within so many mm of the farthest end, specks left out.
const EVEN_MM = 2.0;
const FARTHEST_PERCENTILE = 95;
const INTRACRANIAL = "EstimatedTotalIntraCranialVol";
// By group: what stands for the foramen magnum, and what goes on below it.
const ABOVE_FORAMEN = ["cerebellum"];
const THROUGH_FORAMEN = ["csf", "brainstem"];

/**
 * All measures of a segmentation, by column, and a note where one is not known.
 * @param {Evidence} evidence
 * @param {Uint8Array} inside the skull, on the grid of the evidence
 * @param {Uint8Array} mask the same in the scan's own voxels
 * @returns {{ mm3: Record<string, number | null>, note: string }}
 */
export function measure(evidence, inside, mask) {
  const whyNot = whyNotMeasured(evidence, inside);
  /** @type {Record<string, number | null>} */
  const mm3 = { [INTRACRANIAL]: null };
  if (!whyNot) mm3[INTRACRANIAL] = countOf(mask) * voxelMm3(evidence.scan);
  for (const [column, names] of Object.entries(evidence.settings.measures)) {
    mm3[column] = names.reduce((sum, name) => sum + evidence.volumesMm3.get(name), 0);
  }
  return { mm3, note: whyNot && `no intracranial volume: ${whyNot}` };
}

/**
 * Return the inside of the skull from classes on the working grid: the largest part
 * without holes.
 * @returns {Uint8Array}
 */
export function findInside(classes, { shape, affine }, settings) {
  const maskOf = (groups) => {
    const wanted = settings.classes.map(({ group }) => groups.includes(group) ? 1 : 0);
    return classes.map((index) => wanted[index]);
  };
  const cerebellum = largestPart(maskOf(ABOVE_FORAMEN), shape);
  const through = maskOf(THROUGH_FORAMEN);
  const [X, Y] = shape;
  const heightMm = (at) => {
    const k = Math.floor(at / (X * Y));
    return affine[8] * (at % X) + affine[9] * (Math.floor(at / X) % Y) + affine[10] * k;
  };
  let lowestMm = -Infinity;
  if (countOf(cerebellum)) {
    lowestMm = Infinity;
    cerebellum.forEach((isSet, at) => {
      if (isSet) lowestMm = Math.min(lowestMm, heightMm(at));
    });
  }
  const inside = classes.map((index, at) => {
    const isBelow = through[at] && heightMm(at) < lowestMm;
    return index && !isBelow ? 1 : 0;
  });
  return withoutHoles(largestPart(inside, shape), shape);
}

/** Return a short reason why the intracranial volume is unknown, or "". */
export function whyNotMeasured(evidence, inside) {
  const { settings, volumesMm3, brain } = evidence;
  const { limits } = settings;
  const fluids = settings.classes.filter(({ group }) => group === "csf");
  const isKnown = fluids.some(({ name }) => volumesMm3.has(name));
  if (settings.csf !== "intracranial" || !isKnown) {
    return "the model does not find the fluid around the brain";
  }
  if (!countOf(inside) || !countOf(brain)) return "no brain was found";
  const shares = skullShares(evidence, inside);
  if (Math.max(...shares) < limits.skull) return "the scan shows no skull";
  const { area, structures } = findCut(evidence, { withFluid: true });
  if (area > limits.cut_mm2[0]) {
    return `the field of view ends inside the skull, in ${some(structures)}`;
  }
  if (Math.min(...shares) < limits.skull) {
    return "the scan does not show the skull on all sides";
  }
  if (evennessOf(evidence, inside) > limits.even) {
    return "the tissue around the brain ends at a mask, not at a scalp";
  }
  // A volume of slices that are lost or repeated is wrong by their thickness.
  if (checkContinuity(evidence).length) return "slices are lost, repeated or shifted";
  return "";
}

// ---- The skull ----

/**
 * Return the share of tissue where skull and scalp should be, on each side above the
 * middle.
 */
export function skullShares({ image }, inside) {
  const { shape, affine, data } = image;
  const near = dilated(inside, shape, [SKULL_FROM, SKULL_FROM, SKULL_FROM]);
  const far = dilated(inside, shape, [SKULL_TO, SKULL_TO, SKULL_TO]);
  const middle = middleOf(inside, shape);
  const from = moved(middle, affine);
  const count = 2 * AROUND + 1;
  const voxels = new Float64Array(count);
  const tissue = new Float64Array(count);
  const [X, Y] = shape;
  for (let at = 0; at < far.length; at++) {
    if (!far[at] || near[at]) continue;
    const index = [at % X, Math.floor(at / X) % Y, Math.floor(at / (X * Y))];
    const place = moved(index, affine);
    const side = sideOf(AXES.map((axis) => place[axis] - from[axis]));
    if (side === null) continue;
    voxels[side] += 1;
    if (data[at] > TISSUE) tissue[side] += 1;
  }
  return tissue.map((sum, side) => sum / Math.max(voxels[side], 1));
}

// The side that a direction from the middle leads to; null for those below the middle.
function sideOf(direction) {
  const [x, y, z] = direction;
  const height = z / Math.hypot(x, y, z);
  if (!(height > 0)) return null;
  if (height > TOP) return 2 * AROUND;
  const turn = (Math.atan2(y, x) / (2 * Math.PI) + 1) % 1;
  const side = Math.min(Math.floor(turn * AROUND), AROUND - 1);
  return height > STEEP ? side + AROUND : side;
}

// The mean place of a mask, in voxels.
function middleOf(mask, [X, Y]) {
  const sums = [0, 0, 0];
  let count = 0;
  for (let at = 0; at < mask.length; at++) {
    if (!mask[at]) continue;
    count += 1;
    sums[0] += at % X;
    sums[1] += Math.floor(at / X) % Y;
    sums[2] += Math.floor(at / (X * Y));
  }
  return sums.map((sum) => sum / count);
}

// ---- Evenness ----

/** In how many directions above the middle tissue ends at one distance from the brain. */
export function evennessOf({ image, brain, shape }, inside) {
  const tissue = image.data.map((value) => value > TISSUE ? 1 : 0);
  const outer = everyNth({ data: tissue, shape }, STEPS);
  // Steps of the thinned array to mm; it only turns and scales.
  const affine = image.affine.map((value, n) => n % 4 === 3 ? 0 : value * STEP);
  const upwards = onSphere(DIRECTIONS).filter(([, , z]) => z > 0);
  const shares = [inside, brain].map((mask) => {
    const endsMm = endsOf(
      outer,
      everyNth({ data: mask, shape }, STEPS).data,
      affine,
      upwards,
    );
    const farthestMm = percentileOf(endsMm, FARTHEST_PERCENTILE);
    const even = endsMm.filter((mm) =>
      mm >= farthestMm - EVEN_MM && mm < REACH_MM - STEP
    );
    return even.length / endsMm.length;
  });
  return Math.max(...shares);
}

// Return the distance in mm from a mask to the last tissue, in each direction from its
// middle.
function endsOf({ data, shape }, mask, affine, directions) {
  const steps = AXES.map((axis) =>
    Math.hypot(affine[axis], affine[4 + axis], affine[8 + axis])
  );
  const squares = distancesTo(mask, shape, steps);
  const middle = middleOf(mask, shape);
  const endsMm = directions.map(() => 0);
  const isOutside = (at) => data[at] && squares[at] > 0 && squares[at] <= REACH_MM ** 2;
  const places = placesWhere(data, shape, isOutside);
  const [X, Y] = shape;
  for (let n = 0; n < places.length; n += 3) {
    const index = [places[n], places[n + 1], places[n + 2]];
    const [x, y, z] = moved(AXES.map((axis) => index[axis] - middle[axis]), affine);
    if (!(z > 0)) continue;
    let nearest = 0;
    let most = -Infinity;
    for (let way = 0; way < directions.length; way++) {
      const [a, b, c] = directions[way];
      const along = a * x + b * y + c * z;
      if (along > most) {
        most = along;
        nearest = way;
      }
    }
    const distance = Math.sqrt(squares[index[0] + X * (index[1] + Y * index[2])]);
    endsMm[nearest] = Math.max(endsMm[nearest], distance);
  }
  return endsMm;
}

/**
 * The squared distance of each voxel to the nearest one of a mask, in mm² by steps in mm.
 * Along one axis after the other, each line is the lowest of the parabolas of its voxels
 * (Felzenszwalb and Huttenlocher).
 * @returns {Float64Array}
 */
export function distancesTo(mask, shape, steps) {
  const values = Float64Array.from(mask, (isSet) => isSet ? 0 : Infinity);
  for (const axis of AXES) {
    const stride = [1, shape[0], shape[0] * shape[1]][axis];
    const length = shape[axis];
    const line = new Float64Array(length);
    for (let n = 0; n < values.length / length; n++) {
      const first = (n % stride) + Math.floor(n / stride) * stride * length;
      for (let at = 0; at < length; at++) line[at] = values[first + at * stride];
      lowestParabolas(line, steps[axis]).forEach((value, at) => {
        values[first + at * stride] = value;
      });
    }
  }
  return values;
}

// For each place of a line the least of all values plus squared distances.
function lowestParabolas(line, step) {
  const centres = [];
  // From where on each of these is the lowest one.
  const starts = [];
  const meet = (one, other) => {
    const squares = line[one] - line[other] + step ** 2 * (one ** 2 - other ** 2);
    return squares / (2 * step ** 2 * (one - other));
  };
  line.forEach((value, at) => {
    if (value === Infinity) return;
    while (centres.length && meet(at, centres.at(-1)) <= starts.at(-1)) {
      centres.pop();
      starts.pop();
    }
    starts.push(centres.length ? meet(at, centres.at(-1)) : -Infinity);
    centres.push(at);
  });
  if (!centres.length) return line;
  let n = 0;
  return line.map((_, at) => {
    while (n + 1 < centres.length && starts[n + 1] < at) n += 1;
    return line[centres[n]] + (step * (at - centres[n])) ** 2;
  });
}

// By linear interpolation between values, as NumPy has it.
function percentileOf(values, percent) {
  const ranked = Float64Array.from(values).sort();
  const place = (percent / 100) * (ranked.length - 1);
  const lower = Math.floor(place);
  const upper = Math.min(lower + 1, ranked.length - 1);
  return ranked[lower] + (place - lower) * (ranked[upper] - ranked[lower]);
}
