// Arrays smoothed by a Gaussian, as SciPy's ndimage does it.
import { AXES } from "./grid.js";

/**
 * Values blurred along each axis; beyond an edge values are those before it, mirrored.
 * @param {Float32Array} data
 * @param {import("./grid.js").Triple} shape
 * @param {number} sigma the standard deviation, in voxels
 * @param {number} reach how many standard deviations the Gaussian goes on for
 */
export function blurred(data, shape, sigma, reach) {
  const most = Math.floor(reach * sigma + 0.5);
  const weights = [];
  for (let by = -most; by <= most; by++) {
    weights.push(Math.exp(-0.5 * (by / sigma) ** 2));
  }
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  let values = data;
  for (const axis of AXES) {
    const stride = [1, shape[0], shape[0] * shape[1]][axis];
    const length = shape[axis];
    const out = new Float32Array(values.length);
    for (let at = 0; at < values.length; at++) {
      const place = Math.floor(at / stride) % length;
      let sum = 0;
      for (let by = -most; by <= most; by++) {
        const other = mirrored(place + by, length);
        sum += weights[by + most] * values[at + (other - place) * stride];
      }
      out[at] = sum / total;
    }
    values = out;
  }
  return values;
}

// The place within a line that stands for one beyond its ends; short lines are passed often.
function mirrored(place, length) {
  while (place < 0 || place >= length) {
    place = place < 0 ? -1 - place : 2 * length - 1 - place;
  }
  return place;
}
