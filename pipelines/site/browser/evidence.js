// Input and findings of the checks of a segmentation. The same as
// segmentation/inference/checks/evidence.py.
import { roundHalfToEven } from "./grid.js";

/** @typedef {import("./model.js").Settings} Settings */
/** @typedef {import("./grid.js").Volume} Volume */

/**
 * A finding of a check; `structures` are those concerned.
 * @typedef {{ rejects: boolean, reason: string, structures: string[] }} Finding
 */

/**
 * `working` has the image of 1 mm and the class of each of its voxels, `scan` the grid of the scan.
 * `volumesMm3` has the structures that the model knows. `agreement` is the mean Dice between views
 * of each class; null with one view.
 * @typedef {object} Facts
 * @property {Settings} settings
 * @property {{ image: Volume, classes: Uint8Array }} working
 * @property {import("./grid.js").Grid} scan
 * @property {Map<string, number>} volumesMm3
 * @property {Float64Array | null} agreement
 */

const CSF_GROUP = "csf";
export const NO_TISSUE = ["background", "ventricles", "csf"];
const WHITE_MATTER = ["white-matter"];
const CORTEX = ["cortical", "grey-matter"];
// Agreement on specks says little, and so does their brightness.
export const ENOUGH_MM3 = 100.0;
const NAMED = 3;

export class Evidence {
  /** @param {Facts} facts */
  constructor({ settings, working, scan, volumesMm3, agreement }) {
    this.settings = settings;
    this.image = working.image;
    this.classes = working.classes;
    this.shape = working.image.shape;
    this.scan = scan;
    this.volumesMm3 = volumesMm3;
    this.agreement = agreement;
    // All structures except fluid around the brain.
    this.brain = this.maskOf(({ group }, index) => index > 0 && group !== CSF_GROUP);
    this.whiteMatter = this.mask(WHITE_MATTER);
    this.cortex = this.mask(CORTEX);
    this.brightness = this.brightnessOfTissues();
  }

  /** @returns {Uint8Array} where structures of these groups are */
  mask(groups) {
    return this.maskOf(({ group }) => groups.includes(group));
  }

  /** @param {(structure: import("./model.js").Class, index: number) => boolean} isWanted */
  maskOf(isWanted) {
    const wanted = this.settings.classes.map((each, n) => isWanted(each, n) ? 1 : 0);
    const out = new Uint8Array(this.classes.length);
    for (let at = 0; at < out.length; at++) out[at] = wanted[this.classes[at]];
    return out;
  }

  // Medians of white matter and of cortex; null where there is too little of one.
  brightnessOfTissues() {
    const white = chosen(this.image.data, this.whiteMatter);
    const cortex = chosen(this.image.data, this.cortex);
    if (Math.min(white.length, cortex.length) < ENOUGH_MM3) return null;
    return { white: medianOf(white), cortex: medianOf(cortex) };
  }
}

/** @returns {number} how many voxels of a mask are set */
export function countOf(mask) {
  let count = 0;
  for (let at = 0; at < mask.length; at++) count += mask[at] ? 1 : 0;
  return count;
}

/** @returns {any} the values where a mask is set, of the same type */
export function chosen(values, mask) {
  const out = new values.constructor(countOf(mask));
  let to = 0;
  for (let at = 0; at < mask.length; at++) if (mask[at]) out[to++] = values[at];
  return out;
}

/** @returns {number} the median of an array with numbers, which is sorted; NaN of none */
export function medianOf(values) {
  // Typed arrays sort by number.
  const ranked = Float64Array.from(values).sort();
  const middle = ranked.length / 2;
  return (ranked[Math.ceil(middle) - 1] + ranked[Math.floor(middle)]) / 2;
}

// ---- Findings ----

/** A limit that is never reached is null. @returns {Finding[]} */
export function below(value, [look, reject], reason, structures = []) {
  if (value >= look) return [];
  return [{ rejects: reject !== null && value < reject, reason, structures }];
}

/** @returns {Finding[]} */
export function above(value, [look, reject], reason, structures = []) {
  if (value <= look) return [];
  return [{ rejects: reject !== null && value > reject, reason, structures }];
}

/** The first of some names, and how many more there are. */
export function some(names) {
  const more = names.length - NAMED;
  const named = names.slice(0, NAMED).join(", ");
  return more > 0 ? `${named} and ${more} more` : named;
}

/** A number as Python writes it: just between two of them it is the even one. */
export function fixed(value, digits) {
  const beyond = 25;
  const exact = value.toFixed(digits + beyond).slice(-beyond);
  const isBetween = exact === "5".padEnd(beyond, "0");
  const scale = 10 ** digits;
  const rounded = isBetween ? roundHalfToEven(value * scale) / scale : value;
  return rounded.toFixed(digits);
}

export const percent = (share) => `${fixed(100 * share, 0)}%`;
export const litres = (mm3, digits = 0) => fixed(mm3 / 1e3, digits);
