// Volumes of a segmentation, and the agreement of its views. The same as
// segmentation/inference/prediction.py and uncertainty.py.
import { voxelMm3 } from "./grid.js";

/** @typedef {import("./model.js").Settings} Settings */
/** @typedef {import("./model.js").Class} Class */

/**
 * The volume of each structure that the model knows, in mm³.
 * @param {Uint8Array} indices
 * @param {import("./grid.js").Grid} grid
 * @param {Class[]} classes
 * @returns {Map<string, number>}
 */
export function volumesOf(indices, grid, classes) {
  const counts = new Float64Array(256);
  for (let at = 0; at < indices.length; at++) counts[indices[at]] += 1;
  const mm3 = voxelMm3(grid);
  const found = new Map();
  classes.forEach(({ name, predicted }, index) => {
    if (index && predicted) found.set(name, counts[index] * mm3);
  });
  return found;
}

/**
 * Mean Dice of each class over the pairs of views; NaN where none has the class, null of one view.
 * A view that cannot tell sides is compared on merged structures, which both sides then show.
 * @param {Map<string, Uint8Array>} maps
 * @param {Settings} settings
 */
export function viewAgreement(maps, { views, classes }) {
  if (views.length < 2) return null;
  const toMerged = Uint8Array.from(classes, ({ merged }) => merged);
  const sums = new Float64Array(classes.length);
  const pairs = new Float64Array(classes.length);
  views.forEach((one, n) => {
    for (const other of views.slice(n + 1)) {
      let first = maps.get(one.name);
      let second = maps.get(other.name);
      const areAlike = one.merged === other.merged;
      if (!areAlike && !one.merged) first = first.map((index) => toMerged[index]);
      if (!areAlike && !other.merged) second = second.map((index) => toMerged[index]);
      const dice = diceOfMaps(first, second);
      classes.forEach((_, index) => {
        const value = dice[areAlike ? index : toMerged[index]];
        if (Number.isNaN(value)) return;
        sums[index] += value;
        pairs[index] += 1;
      });
    }
  });
  return sums.map((sum, index) => sum / pairs[index]);
}

/** Dice of each class between two maps; NaN where both lack it. */
export function diceOfMaps(one, other) {
  const sizes = new Float64Array(256);
  const same = new Float64Array(256);
  for (let at = 0; at < one.length; at++) {
    sizes[one[at]] += 1;
    sizes[other[at]] += 1;
    if (one[at] === other[at]) same[one[at]] += 1;
  }
  return sizes.map((size, index) => (2 * same[index]) / size);
}
