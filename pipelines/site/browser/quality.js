// The grade of a segmentation: pass, look or reject, with reasons.
// The same as segmentation/inference/quality.py. The limits are those of the model's settings.
import {
  checkBrainSize,
  checkMissing,
  checkPieces,
  checkResolution,
  checkSides,
  checkSurroundings,
  checkSymmetry,
} from "./anatomy.js";
import {
  checkBands,
  checkContinuity,
  checkContrast,
  checkEdges,
  checkNoise,
  checkSaturation,
} from "./brightness.js";
import { above, below, ENOUGH_MM3, fixed, some } from "./evidence.js";
import { checkFieldOfView } from "./field.js";
import { checkLesions } from "./lesions.js";

/** @typedef {import("./evidence.js").Evidence} Evidence */

const GRADES = ["pass", "look", "reject"];

// In the order of the reasons.
export const CHECKS = [
  checkAgreement,
  checkFieldOfView,
  checkBrainSize,
  checkPieces,
  checkSurroundings,
  checkSymmetry,
  checkContrast,
  checkMissing,
  checkSides,
  checkLesions,
  checkContinuity,
  checkBands,
  checkEdges,
  checkNoise,
  checkSaturation,
  checkResolution,
];

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
      // Structures named by a check get the grade look, unless they are rejected already.
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

function checkAgreement(evidence) {
  const agreement = meanAgreement(evidence);
  if (agreement === null) return [];
  const reason = `views agree by ${fixed(agreement, 2)} only`;
  return below(agreement, evidence.settings.limits.agreement, reason);
}

// ---- Structures ----

// Reject structures that are missing, or on which the views disagree.
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
