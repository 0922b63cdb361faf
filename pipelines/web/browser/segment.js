// The path of a scan: to the working grid, through the networks, and back to the scan's own space.
// The same as segmentation/inference/predictor.py.
import { conform, restore } from "./conform.js";
import { Fusion, Slices } from "./fusion.js";
import { AXES, cutGrid, cutOut, inverse, moved, product, sidesOf } from "./grid.js";
import { brainRegion, isTooSmall, wholeRegion } from "./localisation.js";
import { viewAgreement, volumesOf } from "./measures.js";

/** @typedef {import("./grid.js").Volume} Volume */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./localisation.js").BrainRegion} BrainRegion */

// The brain is looked for in every eighth coronal slice.
const EVERY = 8;
// A voxel that is less likely to be background than this may be brain.
const BACKGROUND = 0.95;

/**
 * Is called with a stage, and which share of it is done, from 0 to 1. What it throws ends the work.
 * @typedef {(stage: string, share: number) => Promise<void>} Say
 */

/**
 * @typedef {object} Segmentation
 * @property {Uint8Array} indices the class of each of the scan's voxels, the first axis fastest
 * @property {Map<string, number>} volumesMm3 of each structure that the model knows
 * @property {Float64Array | null} agreement mean Dice between views of each class
 * @property {{ image: Volume, classes: Uint8Array }} working what networks saw, and found there
 */

/**
 * @param {Volume} scan
 * @param {Model} model
 * @param {Say} say
 * @returns {Promise<Segmentation>}
 */
export async function segment(scan, model, say) {
  await say("conform", 0);
  const image = conform(scan);
  let region = await findBrain(image, model, say);
  let fusion = await fuse(image, region, model, say);
  if (isTooSmall(region, fusion.classes)) {
    region = wholeRegion(image.shape);
    fusion = await fuse(image, region, model, say);
  }
  const working = cutGrid(image, region.box);
  forgetBeyond(fusion, working, scan);
  await say("restore", 0);
  const { classes } = model.settings;
  const addShare = (place, sums, share) => fusion.addShare(place, sums, share);
  const indices = restore(fusion.classes, working, scan, classes.length, addShare);
  return {
    indices,
    volumesMm3: volumesOf(indices, scan, classes),
    agreement: viewAgreement(fusion.maps, model.settings),
    working: {
      image: { ...working, data: cutOut(image.data, image.shape, region.box) },
      classes: fusion.classes,
    },
  };
}

/**
 * Where brain may be, from a few slices; everywhere where none is seen.
 * @param {Volume} image
 * @param {Model} model
 * @param {Say} say
 * @returns {Promise<BrainRegion>}
 */
async function findBrain(image, model, say) {
  const [view] = model.settings.views;
  const slices = new Slices(image.shape, view);
  const seen = new Uint8Array(image.data.length);
  const looked = [];
  const { height, width } = slices;
  const padded = [height, width].map((side) =>
    Math.ceil(side / view.multiple) * view.multiple
  );
  const count = model.settings.classes.length;
  const nothing = new Float32Array(padded[0] * padded[1] * count);
  for (let number = EVERY / 2; number < slices.count; number += EVERY) {
    await say("localisation", number / slices.count);
    const given = slices.cut(image.data, view, [number], [0, height], [0, width]);
    const found = await model.runView(view, given, nothing, [1, padded[0], padded[1]]);
    for (let row = 0; row < height; row++) {
      let place = number * slices.along + row * slices.rows;
      for (let column = 0; column < width; column++, place += slices.columns) {
        seen[place] = found.background[row * padded[1] + column] < BACKGROUND ? 1 : 0;
      }
    }
    looked.push(number);
  }
  return brainRegion(seen, image.shape, looked, view.along);
}

/**
 * The views of an image's region, fused.
 * @param {Volume} image
 * @param {BrainRegion} region
 * @param {Model} model
 * @param {Say} say
 */
async function fuse(image, region, model, say) {
  const part = cutOut(image.data, image.shape, region.box);
  const fusion = new Fusion(model, sidesOf(region.box));
  for (const view of model.settings.views) {
    let done = 0;
    await say(view.name, 0);
    await fusion.addView(part, view, region.mask, async (slices) => {
      done += slices;
      await say(view.name, done / fusion.shape[view.along]);
    });
  }
  await say("fusion", 0);
  await fusion.finish();
  return fusion;
}

// Where the working grid goes on beyond the scan all is background: labels there are in no label
// map, so they must not count in grades either.
function forgetBeyond(fusion, working, scan) {
  const toScan = product(inverse(scan.affine), working.affine);
  const [X, Y, Z] = working.shape;
  let at = 0;
  for (let k = 0; k < Z; k++) {
    for (let j = 0; j < Y; j++) {
      for (let i = 0; i < X; i++, at++) {
        const place = moved([i, j, k], toScan);
        const isBeyond = AXES.some((axis) =>
          place[axis] < -0.5 || place[axis] > scan.shape[axis] - 0.5
        );
        if (isBeyond) fusion.forget(at);
      }
    }
  }
}
