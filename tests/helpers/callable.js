// Functions of the page's modules in a form in which tests can call them.
import { restore } from "../../pipelines/web/browser/conform.js";
import { NUMBERS, toBits } from "../../pipelines/web/browser/half.js";

/** `restore` of values in one array, the classes of a voxel side by side. */
export function restoreValues(classes, working, scan, count, values) {
  const addShare = (place, sums, share) => {
    for (let k = 0; k < count; k++) sums[k] += share * values[place * count + k];
  };
  return restore(classes, working, scan, count, addShare);
}

export const allHalves = () => NUMBERS;

export const halvesOf = (values) => Uint16Array.from(values, toBits);
