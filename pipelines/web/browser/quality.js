// The grade of a segmentation, by those checks of segmentation/inference/quality.py that labels,
// volumes and the agreement of views are enough for. The limits are those of the model's settings.
import { columnLengths } from "./grid.js";
import { partsOf } from "./masks.js";

/** @typedef {import("./model.js").Settings} Settings */

/**
 * What is wrong. `structures` are those it is about.
 * @typedef {{ rejects: boolean, reason: string, structures: string[] }} Finding
 */

/**
 * What the checks look at: `classes` on the working grid, the grid of the scan, volumes in mm³ of
 * the structures that the model knows, and the mean Dice between views of each class.
 * @typedef {object} Evidence
 * @property {Settings} settings
 * @property {{ image: import("./grid.js").Volume, classes: Uint8Array }} working
 * @property {import("./grid.js").Grid} scan
 * @property {Map<string, number>} volumesMm3
 * @property {Float64Array | null} agreement
 */

// Agreement on specks says little, and so does their brightness.
const ENOUGH_MM3 = 100.0;
const NAMED = 3;
const NO_TISSUE = ["background", "ventricles", "csf"];
const WHITE_MATTER = ["white-matter"];
const CORTEX = ["cortical", "grey-matter"];
const GRADES = ["pass", "look", "reject"];

// In the order of the reasons.
const CHECKS = [
  checkAgreement,
  checkBrainSize,
  checkPieces,
  checkSymmetry,
  checkContrast,
  checkMissing,
  checkSides,
  checkResolution,
];
export const CHECK_COUNT = CHECKS.length;

/**
 * @param {Evidence} evidence
 * @returns {{ name: string, reasons: string[], structures: Record<string, string> }}
 */
export function gradeBy(evidence) {
  const structures = gradesOfStructures(evidence);
  const findings = CHECKS.flatMap((check) => check(evidence));
  findings.push(...checkRejected(evidence, structures));
  for (const finding of findings) {
    for (const name of finding.structures) {
      // What a check names is looked at, if it is not rejected already.
      if ((structures[name] ?? "pass") === "pass") structures[name] = "look";
    }
  }
  const rejecting = findings.filter((finding) => finding.rejects);
  const others = findings.filter((finding) => !finding.rejects);
  const reasons = [...rejecting, ...others].map((finding) => finding.reason);
  let name = "pass";
  if (rejecting.length) name = "reject";
  else if (others.length) name = "look";
  return { name, reasons, structures };
}

/** All tissue: every structure but ventricles and other fluid. */
export function totalBrainMm3({ classes }, volumesMm3) {
  let sum = 0;
  for (const { name, group } of classes) {
    if (!NO_TISSUE.includes(group)) sum += volumesMm3.get(name) ?? 0;
  }
  return sum;
}

/** Mean Dice between views over structures large enough to compare; null of one view. */
export function meanAgreement({ settings, volumesMm3, agreement }) {
  if (!agreement) return null;
  const values = [];
  settings.classes.forEach(({ name }, index) => {
    const isLarge = (volumesMm3.get(name) ?? 0) >= ENOUGH_MM3;
    if (isLarge && Number.isFinite(agreement[index])) values.push(agreement[index]);
  });
  if (!values.length) return 0;
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// ---- Findings ----

// A limit that is never reached is null.
function below(value, [look, reject], reason, structures = []) {
  if (value >= look) return [];
  return [{ rejects: reject !== null && value < reject, reason, structures }];
}

function above(value, [look, reject], reason, structures = []) {
  if (value <= look) return [];
  return [{ rejects: reject !== null && value > reject, reason, structures }];
}

function some(names) {
  const more = names.length - NAMED;
  const named = names.slice(0, NAMED).join(", ");
  return more > 0 ? `${named} and ${more} more` : named;
}

const percent = (share) => `${(100 * share).toFixed(0)}%`;
const litres = (mm3, digits = 0) => (mm3 / 1e3).toFixed(digits);

// ---- Checks ----

function checkAgreement(evidence) {
  const agreement = meanAgreement(evidence);
  if (agreement === null) return [];
  const reason = `views agree by ${agreement.toFixed(2)} only`;
  return below(agreement, evidence.settings.limits.agreement, reason);
}

function checkBrainSize({ settings, volumesMm3 }) {
  const brain = totalBrainMm3(settings, volumesMm3);
  const text = `brain of ${litres(brain)} ml`;
  return [
    ...below(brain, settings.limits.smallest_brain_mm3, `${text} only`),
    ...above(brain, settings.limits.largest_brain_mm3, text),
  ];
}

// Tissue that no face of a voxel joins to the largest piece of tissue.
function checkPieces({ settings, working }) {
  const isTissue = settings.classes.map(({ group }) => !NO_TISSUE.includes(group));
  const tissue = working.classes.map((index) => isTissue[index] ? 1 : 0);
  const { parts, sizes } = partsOf(tissue, working.image.shape);
  const largest = sizes.indexOf(Math.max(...sizes));
  const apart = new Float64Array(settings.classes.length);
  let mm3 = 0;
  parts.forEach((part, at) => {
    if (!part || part === largest) return;
    apart[working.classes[at]] += 1;
    mm3 += 1;
  });
  const structures = settings.classes
    .filter((_, index) => apart[index] >= ENOUGH_MM3)
    .map(({ name }) => name);
  let reason = `${litres(mm3, 1)} ml of tissue lie apart from the brain`;
  if (structures.length) reason += `: ${some(structures)}`;
  return above(mm3, settings.limits.apart_mm3, reason, structures);
}

// The smaller side of all tissue, of the larger.
function checkSymmetry({ settings, volumesMm3 }) {
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

// In T1 white matter is brighter than cortex.
function checkContrast(evidence) {
  const white = medianOf(evidence, WHITE_MATTER);
  const cortex = medianOf(evidence, CORTEX);
  if (white === null || cortex === null) return [];
  const contrast = white / Math.max(cortex, 1e-6);
  const reason = `white matter ${contrast.toFixed(2)} times as bright as cortex: ` +
    "not T1-weighted? then use the model any";
  return below(contrast, evidence.settings.limits.contrast, reason);
}

// The brightness of structures of some groups; null where there is too little of them.
function medianOf({ settings, working }, groups) {
  const isWanted = settings.classes.map(({ group }) => groups.includes(group));
  const { data } = working.image;
  const values = data.filter((_, at) => isWanted[working.classes[at]]).sort();
  if (values.length < ENOUGH_MM3) return null;
  const middle = values.length / 2;
  return (values[Math.ceil(middle) - 1] + values[Math.floor(middle)]) / 2;
}

function checkMissing({ settings, volumesMm3 }) {
  const absent = [...volumesMm3].filter(([, mm3]) => mm3 === 0).map(([name]) => name);
  const [look, reject] = settings.limits.missing;
  if (absent.length < look) return [];
  const reason = `not found: ${some(absent)}`;
  return [{ rejects: absent.length >= reject, reason, structures: [] }];
}

// Each structure that is much smaller than its partner on the other side.
function checkSides({ settings, volumesMm3 }) {
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
    if (volumesMm3.get(larger) < limits.sided_mm3) return;
    const ratio = volumesMm3.get(smaller) / volumesMm3.get(larger);
    if (ratio >= (limits.sides[group] ?? limits.other_sides)) return;
    const reason = `${smaller} has ${percent(ratio)} of the volume of ${larger}`;
    findings.push({ rejects: false, reason, structures: pair });
  });
  return findings;
}

function checkResolution({ settings, scan }) {
  const spacing = Math.max(...columnLengths(scan.affine));
  const reason = `voxels are ${
    spacing.toFixed(1)
  } mm apart: small structures come out wrong`;
  return above(spacing, settings.limits.spacing_mm, reason);
}

// ---- Structures ----

// What is not there is rejected; so is what its views do not agree on.
function gradesOfStructures({ settings, volumesMm3, agreement }) {
  const [look, reject] = settings.limits.agreement;
  /** @type {Record<string, string>} */
  const grades = {};
  settings.classes.forEach(({ name }, index) => {
    if (!volumesMm3.has(name)) return;
    if (volumesMm3.get(name) === 0) {
      grades[name] = GRADES[2];
    } else if (agreement) {
      // No view by itself has what their sum has: that is no agreement.
      const value = Number.isFinite(agreement[index]) ? agreement[index] : 0;
      if (value < reject) grades[name] = GRADES[2];
      else grades[name] = value < look ? GRADES[1] : GRADES[0];
    }
  });
  return grades;
}

// Structures that are rejected by themselves, and how many of all they are.
function checkRejected({ settings, volumesMm3 }, structures) {
  const graded = Object.entries(structures);
  if (!graded.length) return [];
  const rejected = graded.filter(([, grade]) => grade === "reject").map(([name]) =>
    name
  );
  const found = rejected.filter((name) => volumesMm3.get(name) > 0);
  let reason = `${rejected.length} structures rejected`;
  if (found.length) reason = `views disagree on ${some(found)}`;
  return above(rejected.length / volumesMm3.size, settings.limits.rejected, reason);
}
