// `restore` of values in one array, as tests can give them: the classes of a voxel side by side.
import { restore } from "../../pipelines/web/browser/conform.js";

export function restoreValues(classes, working, scan, count, values) {
  const addShare = (place, sums, share) => {
    for (let k = 0; k < count; k++) sums[k] += share * values[place * count + k];
  };
  return restore(classes, working, scan, count, addShare);
}
