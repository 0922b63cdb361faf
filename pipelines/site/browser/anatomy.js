// Checks that the labels form one whole brain: its size, its pieces, its sides, its
// borders. The same as segmentation/inference/checks/anatomy.py.
import {
  above,
  below,
  ENOUGH_MM3,
  fixed,
  litres,
  NO_TISSUE,
  percent,
  some,
} from "./evidence.js";
import { columnLengths } from "./grid.js";
import { dilated, largestPart } from "./masks.js";

/** @typedef {import("./evidence.js").Evidence} Evidence */
/** @typedef {import("./evidence.js").Finding} Finding */

// The layer around the brain, in voxels of 1 mm, that is compared with cortex.
const LAYER_FROM = 1;
const LAYER_TO = 2;
// Shares of the brightness of cortex, between which something is like cortex.
const DARKEST = 0.8;
const BRIGHTEST = 1.3;

/** All tissue: every structure but ventricles and other fluid. */
export function totalBrainMm3({ classes }, volumesMm3) {
  let sum = 0;
  for (const { name, group } of classes) {
    if (!NO_TISSUE.includes(group)) sum += volumesMm3.get(name) ?? 0;
  }
  return sum;
}

/** @param {Evidence} evidence @returns {Finding[]} */
export function checkBrainSize({ settings, volumesMm3 }) {
  const brain = totalBrainMm3(settings, volumesMm3);
  const text = `brain of ${litres(brain)} ml`;
  return [
    ...below(brain, settings.limits.smallest_brain_mm3, `${text} only`),
    ...above(brain, settings.limits.largest_brain_mm3, text),
  ];
}

/**
 * Small structures are lost between thick slices.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkResolution({ settings, scan, volumesMm3 }) {
  const { limits } = settings;
  const spacing = Math.max(...columnLengths(scan.affine));
  const small = [...volumesMm3]
    .filter(([, mm3]) => mm3 < limits.small_mm3)
    .map(([name]) => name);
  let reason = `voxels are ${
    fixed(spacing, 1)
  } mm apart: small structures come out wrong`;
  if (small.length) reason += `: ${some(small)}`;
  return above(spacing, limits.spacing_mm, reason, small);
}

/** @param {Evidence} evidence @returns {Finding[]} */
export function checkMissing({ settings, volumesMm3 }) {
  const absent = [...volumesMm3].filter(([, mm3]) => mm3 === 0).map(([name]) => name);
  const [look, reject] = settings.limits.missing;
  if (absent.length < look) return [];
  const reason = `not found: ${some(absent)}`;
  return [{ rejects: absent.length >= reject, reason, structures: [] }];
}

/**
 * Tissue that no face of a voxel joins to the largest piece of tissue.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkPieces(evidence) {
  const { settings, classes, shape } = evidence;
  const tissue = evidence.maskOf(({ group }) => !NO_TISSUE.includes(group));
  const largest = largestPart(tissue, shape);
  const apart = new Float64Array(settings.classes.length);
  let mm3 = 0;
  for (let at = 0; at < tissue.length; at++) {
    if (!tissue[at] || largest[at]) continue;
    apart[classes[at]] += 1;
    mm3 += 1;
  }
  const structures = settings.classes
    .filter((_, index) => apart[index] >= ENOUGH_MM3)
    .map(({ name }) => name);
  let reason = `${litres(mm3, 1)} ml of tissue lie apart from the brain`;
  if (structures.length) reason += `: ${some(structures)}`;
  return above(mm3, settings.limits.apart_mm3, reason, structures);
}

/**
 * The smaller side of all tissue, of the larger.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkSymmetry({ settings, volumesMm3 }) {
  const tissue = { left: 0, right: 0 };
  for (const { name, group, side } of settings.classes) {
    if (!side || NO_TISSUE.includes(group)) continue;
    tissue[side] += volumesMm3.get(name) ?? 0;
  }
  const larger = Math.max(tissue.left, tissue.right);
  if (!larger) return [];
  const ratio = Math.min(tissue.left, tissue.right) / larger;
  const reason = `one side has ${percent(ratio)} of the other`;
  return below(ratio, settings.limits.symmetry, reason);
}

/**
 * Each structure that is much smaller than its partner on the other side; an empty side is
 * reported by another check.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkSides({ settings, volumesMm3 }) {
  const { limits, classes } = settings;
  const findings = [];
  classes.forEach(({ name, group, partner }, index) => {
    // Each pair once.
    if (partner === null || partner < index) return;
    const other = classes[partner].name;
    if (!volumesMm3.has(name) || !volumesMm3.has(other)) return;
    let pair = [name, other];
    if (volumesMm3.get(name) > volumesMm3.get(other)) pair = [other, name];
    const [smaller, larger] = pair;
    if (volumesMm3.get(smaller) === 0) return;
    if (volumesMm3.get(larger) < limits.sided_mm3) return;
    const ratio = volumesMm3.get(smaller) / volumesMm3.get(larger);
    if (ratio >= (limits.sides[group] ?? limits.other_sides)) return;
    const reason = `${smaller} has ${percent(ratio)} of the volume of ${larger}`;
    findings.push({ rejects: false, reason, structures: pair });
  });
  return findings;
}

/**
 * Little of what is just outside of the brain is as bright as cortex: fluid is darker.
 * @param {Evidence} evidence
 * @returns {Finding[]}
 */
export function checkSurroundings(evidence) {
  const share = shareLikeCortex(evidence);
  if (share === null) return [];
  const reason = `${percent(share)} of what is just outside the brain is as bright ` +
    "as cortex: cortex missing?";
  return above(share, evidence.settings.limits.like_cortex, reason);
}

/** Share of the second layer of voxels outside of the brain; null without cortex. */
export function shareLikeCortex({ brightness, brain, shape, image }) {
  if (!brightness) return null;
  const near = dilated(brain, shape, [LAYER_FROM, LAYER_FROM, LAYER_FROM]);
  const far = dilated(brain, shape, [LAYER_TO, LAYER_TO, LAYER_TO]);
  const low = DARKEST * brightness.cortex;
  const high = BRIGHTEST * brightness.cortex;
  let voxels = 0;
  let alike = 0;
  for (let at = 0; at < far.length; at++) {
    if (!far[at] || near[at]) continue;
    voxels += 1;
    if (image.data[at] > low && image.data[at] < high) alike += 1;
  }
  return voxels ? alike / voxels : null;
}
