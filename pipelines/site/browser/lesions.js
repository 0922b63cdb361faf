// Check for regions of the brain that belong to no structure: dark, bright or grey ones.
// The same as segmentation/inference/checks/lesions.py.
import {
  BLOCK,
  blockShape,
  blockSums,
  masked,
  smoothed,
  VOXELS,
} from "./brightness.js";
import { chosen, countOf, fixed, medianOf, NO_TISSUE, some } from "./evidence.js";
import { cutOut, padded } from "./grid.js";
import {
  grownByFaces,
  opened,
  partsOf,
  shrunkByFaces,
  withNeighbours,
  withoutHoles,
} from "./masks.js";

/** @typedef {import("./evidence.js").Evidence} Evidence */
/** @typedef {import("./evidence.js").Finding} Finding */
/** @typedef {{ mm3: number, structures: string[] }} Place */

// White matter around: over a Gaussian of this standard deviation, in blocks.
const AROUND = 6.0;
// Fissures up to twice this wide, in blocks, are inside the brain.
const FISSURE = 2;
// In shares of the white matter around it. Fat, vessels and dura are as bright, but not inside.
const BRIGHT = 1.25;
// Dark as fluid is: below cortex by this share of what white matter is above it.
const BELOW_CORTEX = 0.8;
// Smaller places are vessels, widened spaces around them and folds: radii in blocks.
const BRIGHT_RADIUS = 2;
const DARK_RADIUS = 1;
const FLUID_RADIUS = 3;
// Large bright places, and how much brighter than beyond their edge.
const BRIGHT_MASS = 1.12;
const EDGE = 1.15;
const MASS_RADIUS = 3;
// Thresholds for grey as cortex: darker than white matter by these shares of the
// difference to cortex.
const GREY = [1.3, 0.6];
const GREY_RADIUS = 4;
// Structures that are as grey and as thick.
const GREY_STRUCTURES = [...NO_TISSUE, "subcortical", "brainstem", "cerebellum"];
const NAMED = 2;

/**
 * Dark and grey places in white matter, fluid outside ventricles, bright places anywhere.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkLesions(evidence) {
  const findings = [];
  for (const [what, { mm3, structures }] of Object.entries(findPlaces(evidence))) {
    if (mm3 <= evidence.settings.limits.lesion_mm3) continue;
    const where = structures.length ? some(structures) : "the brain";
    const reason = `a ${what} place of ${
      fixed(mm3 / 1e3, 1)
    } ml in ${where}: a lesion?`;
    findings.push({ rejects: false, reason, structures });
  }
  return findings;
}

/**
 * The dark, bright and grey places in the brain, by what they are.
 * @param {Evidence} evidence
 * @returns {Record<string, Place>}
 */
export function findPlaces(evidence) {
  const { brightness, image, shape } = evidence;
  if (!brightness) return {};
  const { white, cortex } = brightness;
  // White matter at 0 means labels that lie on nothing.
  if (white <= 0 || cortex >= white) return {};
  const sides = blockShape(shape);
  const blocksOf = (mask) => blockSums(mask, shape).map((sum) => sum > 0 ? 1 : 0);
  const maskOf = (isSet) => Uint8Array.from({ length: weights.length }, isSet);
  const openedBy = (mask, radius) => opened(mask, sides, radius);
  const weights = blockSums(evidence.whiteMatter, shape);
  const relative = relativeToWhiteMatter(evidence, weights, sides);
  const brain = inside(blocksOf(evidence.brain), sides);
  const isFluid = ({ group }) => group !== "background" && NO_TISSUE.includes(group);
  const fluid = blocksOf(evidence.maskOf(isFluid));

  // White matter that is darker than cortex, and anything that is as dark as fluid.
  const cortexShare = cortex / white;
  const darkerThanCortex = maskOf((_, at) =>
    relative[at] < cortexShare && weights[at] === VOXELS ? 1 : 0
  );
  const asDark = (cortex - BELOW_CORTEX * (white - cortex)) / white;
  const darkAsFluid = maskOf((_, at) =>
    brain[at] && !fluid[at] && relative[at] < asDark ? 1 : 0
  );
  const dark = either(
    openedBy(darkerThanCortex, DARK_RADIUS),
    openedBy(darkAsFluid, FLUID_RADIUS),
  );
  // A mass in white matter that is labelled as such is the white matter around itself: large
  // places are measured by the whole brain's, and must have an edge.
  const means = blockSums(image.data, shape).map((sum) => sum / VOXELS / white);
  const edged = (mask, low, high) =>
    withEdge(mask, means, weights, sides, (ratio) => ratio > low && ratio < high);
  const isBright = maskOf((_, at) => brain[at] && relative[at] > BRIGHT ? 1 : 0);
  const isMass = maskOf((_, at) => brain[at] && means[at] > BRIGHT_MASS ? 1 : 0);
  const bright = either(
    openedBy(isBright, BRIGHT_RADIUS),
    edged(openedBy(isMass, MASS_RADIUS), EDGE, Infinity),
  );

  const [darkest, brightest] = GREY.map((share) => 1 - share * (1 - cortexShare));
  const isThick = ({ group }) =>
    group !== "background" && GREY_STRUCTURES.includes(group);
  const thick = blocksOf(evidence.maskOf(isThick));
  const greyIn = (values) =>
    maskOf((_, at) => {
      const isGrey = values[at] > darkest && values[at] < brightest;
      return isGrey && brain[at] && !thick[at] ? 1 : 0;
    });
  const grey = either(
    openedBy(greyIn(relative), GREY_RADIUS),
    edged(openedBy(greyIn(means), GREY_RADIUS), 0, brightest),
  );
  return {
    dark: placeOf(evidence, dark, sides),
    bright: placeOf(evidence, bright, sides),
    grey: placeOf(evidence, grey, sides),
  };
}

const either = (one, other) => one.map((isSet, at) => isSet | other[at]);

// The places whose rim has such a brightness, of that of the white matter just beyond it.
function withEdge(places, means, weights, sides, isWanted) {
  const { parts, sizes } = partsOf(places, sides);
  const found = new Uint8Array(places.length);
  for (let number = 1; number < sizes.length; number++) {
    const part = places.map((_, at) => parts[at] === number ? 1 : 0);
    const core = shrunkByFaces(part, sides, 2);
    const rim = part.map((isSet, at) => isSet && !core[at] ? 1 : 0);
    const near = withNeighbours(part, sides);
    const far = grownByFaces(part, sides, 3);
    const around = far.map((isSet, at) =>
      isSet && !near[at] && weights[at] === VOXELS ? 1 : 0
    );
    if (!countOf(around)) continue;
    const outer = Math.max(medianOf(chosen(means, around)), 1e-3);
    if (!isWanted(medianOf(chosen(means, rim)) / outer)) continue;
    for (let at = 0; at < found.length; at++) found[at] |= part[at];
  }
  return found;
}

// Brightness of blocks, of that of the white matter around.
function relativeToWhiteMatter({ image, whiteMatter, shape }, weights, sides) {
  const sums = blockSums(masked(image.data, whiteMatter), shape);
  const around = smoothed(sums, weights, sides, AROUND);
  return blockSums(image.data, shape).map((sum, at) =>
    sum / VOXELS / Math.max(around[at], 1e-3)
  );
}

// The brain with its fissures, and what it encloses.
function inside(labelled, sides) {
  const wide = sides.map((side) => side + 2 * FISSURE);
  const grown = grownByFaces(padded(labelled, sides, FISSURE), wide, FISSURE);
  const filled = withoutHoles(shrunkByFaces(grown, wide, FISSURE), wide);
  const stop = sides.map((side) => side + FISSURE);
  return cutOut(filled, wide, { start: [FISSURE, FISSURE, FISSURE], stop });
}

// Return the volume of a mask of blocks, and the structures that most of it and its rim
// belong to.
function placeOf({ settings, classes, shape }, mask, sides) {
  const count = countOf(mask);
  if (!count) return { mm3: 0, structures: [] };
  const rim = withNeighbours(mask, sides);
  const counts = new Float64Array(settings.classes.length);
  const [X, Y] = shape;
  let at = 0;
  for (let k = 0; k < sides[2] * BLOCK; k++) {
    for (let j = 0; j < sides[1] * BLOCK; j++) {
      const line = sides[0] * ((j >> 1) + sides[1] * (k >> 1));
      at = X * (j + Y * k);
      for (let i = 0; i < sides[0] * BLOCK; i++, at++) {
        if (rim[line + (i >> 1)]) counts[classes[at]] += 1;
      }
    }
  }
  counts[0] = 0;
  const structures = [...counts.keys()]
    .sort((one, other) => counts[other] - counts[one])
    .slice(0, NAMED)
    .filter((index) => counts[index] > 0)
    .map((index) => settings.classes[index].name);
  return { mm3: count * VOXELS, structures };
}
