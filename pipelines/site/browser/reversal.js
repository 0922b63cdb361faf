// Bright and dark reversed where a scan does not have the order of T1.
// The same as segmentation/inference/preparation.py, which says why.
import { medianOf } from "./evidence.js";

/** @typedef {import("./model.js").Class} Class */

// Brightness is that of the working grid, where 1 is the bright end of a head.
const BRIGHTEST = 1.2;
// Darker than this share of white matter's brightness is no tissue of the brain, but bone and air.
const DARKEST = 0.5;
// Cortex that is less than this times as bright as white matter says nothing of the order.
const CLEARLY = 1.04;
// Fewer voxels of a tissue say nothing either.
const ENOUGH_VOXELS = 100;
// Labels that are less likely than this are no evidence.
const LIKELY = 0.5;
const TISSUES = {
  whiteMatter: ["white-matter"],
  cortex: ["cortical", "grey-matter"],
  fluid: ["ventricles", "csf"],
};
// Note for a scan whose contrast was reversed.
export const REVERSED = "cortex and fluid are brighter than white matter: " +
  "the contrast was reversed for the networks";

/** Gathers what some slices of a scan show of its tissues. */
export class Order {
  /** @param {Class[]} classes of the networks */
  constructor(classes) {
    this.brightness = Object.keys(TISSUES).map(() => []);
    this.tissueOf = classes.map(({ group }) =>
      Object.values(TISSUES).findIndex((groups) => groups.includes(group))
    );
  }

  /** Add a voxel with the class that a network takes it for, and how likely that is. */
  add(brightness, index, likelihood) {
    const tissue = this.tissueOf[index];
    if (likelihood > LIKELY && tissue >= 0) this.brightness[tissue].push(brightness);
  }

  /** The brightness of white matter of a scan that is to be reversed; null of any other. */
  whiteMatterIfReverse() {
    if (this.brightness.some((values) => values.length < ENOUGH_VOXELS)) return null;
    const [whiteMatter, cortex, fluid] = this.brightness.map(lowerMedianOf);
    const isReverse = cortex > CLEARLY * whiteMatter && fluid > whiteMatter;
    return whiteMatter > 0 && isReverse ? whiteMatter : null;
  }
}

// Of two middle values take the lower one, as torch does.
function lowerMedianOf(values) {
  if (values.length % 2) return medianOf(values);
  return Float64Array.from(values).sort()[values.length / 2 - 1];
}

/** @returns {Float32Array} an image with white matter brighter than cortex, and that than fluid */
export function reversed(data, whiteMatter) {
  const darkest = DARKEST * whiteMatter;
  const out = new Float32Array(data.length);
  for (let at = 0; at < data.length; at++) {
    const value = data[at];
    out[at] = value < darkest
      ? (value / darkest) ** 2 * (BRIGHTEST - darkest)
      : Math.max(BRIGHTEST - value, 0);
  }
  return out;
}
