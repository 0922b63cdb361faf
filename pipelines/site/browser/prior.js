// Anatomical prior for voxels in which the networks are uncertain: a template, aligned to
// a scan by the centroids of its structures. The same as apply_prior of
// segmentation/inference/prior.py, whose formula is a graph of the model.
import { fixed } from "./evidence.js";
import { AXES, inverse, moved, product } from "./grid.js";
import { cross, dot, singular, solved } from "./linear.js";

/** @typedef {import("./grid.js").Triple} Triple */
/** @typedef {import("./grid.js").Matrix} Matrix */
/** @typedef {import("./model.js").Model} Model */

// Groups of structures that extend over the whole head.
const GROUPS_WITHOUT_CENTROID = ["white-matter", "cortical", "background", "csf"];
// A smaller structure has no centroid.
const MIN_VOXELS_OF_CENTROID = 20;
// A head is placed by no fewer structures than these.
const FEWEST_STRUCTURES = 8;
// Largest distance of a structure from its expected position, in each round.
const TOLERANCES_MM = [60, 40, 30, 20, 15, 12, 12];
// Around where an affine brings them, centroids of healthy heads scatter by about this; heads differ
// from each other in shape, scale apart, by this share.
const SCATTER_MM = 3.0;
const SHAPES = 0.08;
const SCALES = [0.7, 1.4];
const MOST_TURNED_DEG = 60.0;
// Voxels whose probabilities are changed at a time.
const VOXELS_AT_A_TIME = 1 << 15;

/**
 * Change the fused probabilities of a scan; returns why not, or an empty string.
 * @param {import("./fusion.js").Fusion} fusion
 * @param {import("./grid.js").Grid} working
 * @param {Model} model
 */
export async function applyPrior(fusion, working, model) {
  const { classes, prior } = model.settings;
  const found = centroidsOf(fusion.classes, working, classes);
  const placed = placeHead(found, prior.centroids);
  if (typeof placed === "string") return `anatomical prior not used: ${placed}`;
  const toTemplate = product(
    product(inverse(prior.affine), placed),
    working.affine,
  );
  const template = new Template(await model.template(), prior.shape, classes.length);
  const doubtful = [];
  for (let voxel = 0; voxel < fusion.classes.length; voxel++) {
    if (fusion.likelihood(voxel) < prior.certain) doubtful.push(voxel);
  }
  const [X, Y] = working.shape;
  for (let first = 0; first < doubtful.length; first += VOXELS_AT_A_TIME) {
    const places = doubtful.slice(first, first + VOXELS_AT_A_TIME);
    const shares = new Float32Array(places.length * classes.length);
    places.forEach((at, n) => {
      const index = [at % X, Math.floor(at / X) % Y, Math.floor(at / (X * Y))];
      template.addShares(moved(index, toTemplate), shares, n * classes.length);
    });
    const before = fusion.valuesAt(places);
    fusion.set(places, await model.weigh(shares, before));
  }
  return "";
}

/**
 * Centres of classes in a map, in mm; null for those that have none.
 * @param {Uint8Array} labels
 * @param {import("./grid.js").Grid} grid
 * @param {import("./model.js").Class[]} classes
 * @returns {(Triple | null)[]}
 */
export function centroidsOf(labels, { shape, affine }, classes) {
  const counts = new Float64Array(classes.length);
  const sums = AXES.map(() => new Float64Array(classes.length));
  const [X, Y, Z] = shape;
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        const index = labels[at];
        counts[index] += 1;
        sums[0][index] += i;
        sums[1][index] += j;
        sums[2][index] += k;
      }
    }
  }
  return classes.map(({ group }, index) => {
    if (counts[index] < MIN_VOXELS_OF_CENTROID) return null;
    if (GROUPS_WITHOUT_CENTROID.includes(group)) return null;
    return moved(sums.map((sum) => sum[index] / counts[index]), affine);
  });
}

/**
 * An affine from a scan's millimetres to a template's, or the reason why there is none.
 * @param {(Triple | null)[]} found
 * @param {(Triple | null)[]} template
 * @returns {Matrix | string}
 */
export function placeHead(found, template) {
  const known = found.map((_, n) => n).filter((n) => found[n] && template[n]);
  if (known.length < FEWEST_STRUCTURES) {
    return `only ${known.length} structures to place it by`;
  }
  const start = known.map((n) => found[n]);
  const end = known.map((n) => template[n]);
  let weights = start.map(() => 1);
  let fit = fitSimilarity(start, end, weights);
  for (const toleranceMm of TOLERANCES_MM) {
    fit = fitSimilarity(start, end, weights);
    const { matrix } = fit;
    // Tukey's: 1 for a structure in its place, 0 from the tolerance on.
    weights = start.map((point, n) => {
      const place = moved(point, matrix);
      const offMm = Math.hypot(...AXES.map((axis) => place[axis] - end[n][axis]));
      const part = offMm / toleranceMm;
      return part < 1 ? (1 - part ** 2) ** 2 : 0;
    });
    if (sumOf(weights) < FEWEST_STRUCTURES / 2) {
      return `structures lie ${toleranceMm} mm and more from where they should`;
    }
  }
  const { matrix: similarity, turnedDeg } = fit;
  if (turnedDeg > MOST_TURNED_DEG) {
    // Sides that are exchanged in the header fit best by a head upside down.
    return `the head would be turned by ${fixed(turnedDeg, 0)} degrees`;
  }
  const aligned = start.map((point) => moved(point, similarity));
  const matrix = product(fitNearIdentity(aligned, end, weights), similarity);
  const { sizes } = singular(AXES.map((row) => matrix.slice(4 * row, 4 * row + 3)));
  const least = Math.min(...sizes);
  const most = Math.max(...sizes);
  if (least < SCALES[0] || most > SCALES[1]) {
    return `the head would be scaled by ${fixed(least, 2)} to ${fixed(most, 2)}`;
  }
  return matrix;
}

const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

function weightedMean(points, weights) {
  const total = sumOf(weights);
  return AXES.map((axis) =>
    sumOf(points.map((point, n) => point[axis] * weights[n])) / total
  );
}

const less = (point, middle) => AXES.map((axis) => point[axis] - middle[axis]);

/**
 * Rotation, one scale and a shift that take points to others (Umeyama 1991).
 * @returns {{ matrix: Matrix, turnedDeg: number }}
 */
function fitSimilarity(start, end, weights) {
  const total = sumOf(weights);
  const shares = weights.map((weight) => weight / total);
  const startMiddle = weightedMean(start, weights);
  const endMiddle = weightedMean(end, weights);
  const startOff = start.map((point) => less(point, startMiddle));
  const endOff = end.map((point) => less(point, endMiddle));
  const covariance = AXES.map((row) =>
    AXES.map((column) =>
      sumOf(shares.map((share, n) => share * endOff[n][row] * startOff[n][column]))
    )
  );
  const { sizes, from, to } = singular(covariance);
  // Never a reflection: the last axis, along which points spread least, follows the two others.
  const axesFrom = [from[0], from[1], cross(from[0], from[1])];
  const axesTo = [to[0], to[1], cross(to[0], to[1])];
  const rotation = AXES.map((row) =>
    AXES.map((column) => sumOf(AXES.map((n) => axesTo[n][row] * axesFrom[n][column])))
  );
  const [a, b, c] = covariance;
  const handedness = Math.sign(dot(a, cross(b, c)));
  const variance = sumOf(
    shares.map((share, n) => share * dot(startOff[n], startOff[n])),
  );
  const scale = (sizes[0] + sizes[1] + handedness * sizes[2]) / variance;
  const matrix = [];
  for (const axis of AXES) {
    const row = rotation[axis].map((part) => scale * part);
    matrix.push(...row, endMiddle[axis] - dot(row, startMiddle));
  }
  const trace = rotation[0][0] + rotation[1][1] + rotation[2][2];
  const cosine = Math.min(Math.max((trace - 1) / 2, -1), 1);
  const turnedDeg = Math.acos(cosine) * 180 / Math.PI;
  return { matrix: [...matrix, 0, 0, 0, 1], turnedDeg };
}

// The likeliest affine that takes points to others: ridge regression of the change.
function fitNearIdentity(start, end, weights) {
  const middle = weightedMean(start, weights);
  const rows = start.map((point) => [...less(point, middle), 1]);
  const wanted = end.map((point, n) => less(point, start[n]));
  const penalty = (SCATTER_MM / SHAPES) ** 2;
  const all = [0, 1, 2, 3];
  const squares = all.map((row) =>
    all.map((column) => {
      const sum = sumOf(
        weights.map((weight, n) => weight * rows[n][row] * rows[n][column]),
      );
      // The shift is free.
      return row === column && row < 3 ? sum + penalty : sum;
    })
  );
  const products = all.map((row) =>
    AXES.map((axis) =>
      sumOf(weights.map((weight, n) => weight * rows[n][row] * wanted[n][axis]))
    )
  );
  const change = solved(squares, products);
  const matrix = [];
  for (const axis of AXES) {
    const row = AXES.map((column) => change[column][axis]);
    const shift = change[3][axis] - dot(row, middle);
    row[axis] += 1;
    matrix.push(...row, shift);
  }
  return [...matrix, 0, 0, 0, 1];
}

/** Probability of each class at each place of a mean head, out of 255. */
export class Template {
  /**
   * @param {Uint8Array} shares classes innermost, the last axis before them
   * @param {Triple} shape
   * @param {number} count of classes
   */
  constructor(shares, shape, count) {
    this.shares = shares;
    this.shape = shape;
    this.count = count;
  }

  /** Add the shares at a place, trilinearly; beyond the edges the outermost go on. */
  addShares(place, sums, to) {
    const corners = AXES.map((axis) => {
      const low = Math.floor(place[axis]);
      const last = this.shape[axis] - 1;
      const part = place[axis] - low;
      return [low, low + 1].map((at, n) => ({
        at: Math.min(Math.max(at, 0), last),
        share: n ? part : 1 - part,
      }));
    });
    const [, Y, Z] = this.shape;
    for (const x of corners[0]) {
      for (const y of corners[1]) {
        for (const z of corners[2]) {
          const share = x.share * y.share * z.share;
          const from = ((x.at * Y + y.at) * Z + z.at) * this.count;
          for (let k = 0; k < this.count; k++) {
            sums[to + k] += share * this.shares[from + k];
          }
        }
      }
    }
  }
}
