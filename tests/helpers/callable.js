// Functions of the page's modules in a form in which tests can call them.
import { shareLikeCortex } from "../../pipelines/site/browser/anatomy.js";
import {
  bandShare,
  edgeSharpness,
  noiseShare,
  saturatedShare,
  tissueContrast,
} from "../../pipelines/site/browser/brightness.js";
import { restore, restoreMask } from "../../pipelines/site/browser/conform.js";
import { Evidence } from "../../pipelines/site/browser/evidence.js";
import { findCut } from "../../pipelines/site/browser/field.js";
import { compare } from "../../pipelines/site/browser/graphics.js";
import { findPlaces } from "../../pipelines/site/browser/lesions.js";
import {
  evennessOf,
  findInside,
  measure,
  skullShares,
} from "../../pipelines/site/browser/measuring.js";
import { Template } from "../../pipelines/site/browser/prior.js";
import { CHECKS, gradeBy } from "../../pipelines/site/browser/quality.js";
import { scansOf } from "../../pipelines/site/browser/read.js";
import { Order } from "../../pipelines/site/browser/reversal.js";
import { secondsLeft, Site } from "../../pipelines/site/browser/site.js";
import { NUMBERS, toBits } from "../../pipelines/site/browser/half.js";

/** `restore` of values in one array, the classes of a voxel side by side. */
export function restoreValues(classes, working, scan, count, values) {
  const addShare = (place, sums, share) => {
    for (let k = 0; k < count; k++) sums[k] += share * values[place * count + k];
  };
  return restore(classes, working, scan, count, addShare);
}

/**
 * Return the verdict on a graphics card with this many differing pixels and this time.
 */
export function comparedWith(others, tookMs, processorTookMs) {
  const sessionOf = (wrong, ms) => ({
    run: async ({ slices: [count, , rows, columns] }) => {
      await new Promise((resolve) => setTimeout(resolve, ms));
      const data = new Uint8Array(count * rows * columns);
      return { classes: { data: data.fill(1, 0, wrong) } };
    },
    release: () => {},
  });
  const ort = {
    // A shape is all that these networks look at.
    Tensor: function (_kind, _values, shape) {
      return shape;
    },
    InferenceSession: { create: () => sessionOf(0, processorTookMs) },
  };
  const sessions = new Map([["coronal", sessionOf(others, tookMs)]]);
  const views = [{ name: "coronal", channels: 3 }];
  const model = { settings: { views, classes: ["background"] }, sessions };
  return compare(ort, /** @type {any} */ (model), async () => new ArrayBuffer(0));
}

/**
 * Return the seconds that the page shows for a scan at these times in seconds, with these shares
 * done; a share of null means that no slice was ready since.
 */
export function countdown(points) {
  const job = { since: 0, share: 0, at: 0, leastLeft: Infinity };
  return points.map(([seconds, share]) => {
    if (share !== null) Object.assign(job, { share, at: 1000 * seconds });
    return secondsLeft(job, 1000 * seconds);
  });
}

export const allHalves = () => NUMBERS;

export const halvesOf = (values) => Uint16Array.from(values, toBits);

/** The findings of each check, in their order, and the grade. */
export function findingsOf(facts) {
  const evidence = new Evidence(facts);
  return {
    findings: CHECKS.map((check) => check(evidence)),
    grade: gradeBy(evidence),
  };
}

export const gradeOf = (facts) => gradeBy(new Evidence(facts));

/** Return the values that checks compare with their limits. */
export function measuredBy(facts) {
  const evidence = new Evidence(facts);
  const { classes, image, settings } = evidence;
  const inside = findInside(classes, image, settings);
  const { area, structures } = findCut(evidence, { withFluid: true });
  return {
    tissueContrast: tissueContrast(evidence),
    shareLikeCortex: shareLikeCortex(evidence),
    saturatedShare: saturatedShare(evidence),
    noiseShare: noiseShare(evidence),
    bandShare: bandShare(evidence),
    edgeSharpness: edgeSharpness(evidence),
    areaWithFluid: area,
    cutStructures: structures,
    skullShares: skullShares(evidence, inside),
    evenness: evennessOf(evidence, inside),
    places: findPlaces(evidence),
  };
}

export function maskAndMeasures(facts) {
  const evidence = new Evidence(facts);
  const { classes, image, settings, scan } = evidence;
  const inside = findInside(classes, image, settings);
  const mask = restoreMask(inside, image, scan);
  return { inside, mask, ...measure(evidence, inside, mask) };
}

/** Return the template's values at some places, (N, K). */
export function sharesAt(shares, shape, count, places) {
  const template = new Template(shares, shape, count);
  const sums = new Float32Array(places.length * count);
  places.forEach((place, n) => template.addShares(place, sums, n * count));
  return sums;
}

/** The names of files, divided into scans. */
export async function namesOfScans(files) {
  const scans = await scansOf(files);
  return scans.map((scan) => scan.map(({ name }) => name));
}

/** `Order` of voxels in three arrays. */
export function whiteMatterIfReverse(classes, brightness, indices, likelihood) {
  const order = new Order(classes);
  brightness.forEach((value, n) => order.add(value, indices[n], likelihood[n]));
  return order.whiteMatterIfReverse();
}

/** The models that a site loads, and the scans of each, when another one is chosen on the way. */
export function modelsOfScans() {
  const loaded = [];
  globalThis.Worker = class {
    constructor(url) {
      this.model = url.searchParams.get("model");
      this.scans = [];
      loaded.push(this);
    }
    addEventListener() {}
    terminate() {
      this.isEnded = true;
    }
    postMessage({ files, anyContrast }) {
      this.scans.push(files[0].name);
      this.anyContrast = anyContrast;
    }
  };
  const models = [["fast", "T1"], ["any", "any"]].map(([model, contrast]) => ({
    model,
    contrast,
    classes: [],
    views: [],
  }));
  const site = new Site(models);
  const drop = (name) => site.accept([new File([], name)]);
  const end = () => site.hear({ kind: "failed", reason: "no head" });
  drop("one");
  site.choose("any");
  drop("two");
  // Running work continues with the model that it began with.
  const before = loaded.map(({ model }) => model);
  end();
  end();
  site.choose("fast");
  drop("three");
  return {
    before,
    workers: loaded.map(({ model, scans, isEnded, anyContrast }) => [
      model,
      scans,
      !isEnded,
      anyContrast,
    ]),
  };
}

/** The volumes of a structure that a scan in the page is ranked among. */
export function rankedAmong(name, results) {
  globalThis.Worker = class {
    addEventListener() {}
  };
  const site = new Site([{ model: "fast", classes: [{ name: "" }, { name }], views: [] }]);
  site.jobs = results.map((result) => ({ state: "done", links: [], result }));
  return site.overview().structures[0].volumes;
}
