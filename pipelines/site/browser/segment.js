// The path of a scan: to the working grid, through the networks, and back to the scan's own space.
// The same as segmentation/inference/predictor.py.
import { conform, restore } from "./conform.js";
import { Fusion, Slices } from "./fusion.js";
import { beyond, cutGrid, cutOut, sidesOf } from "./grid.js";
import { brainRegion, isTooSmall, wholeRegion } from "./localisation.js";
import { applyPrior } from "./prior.js";
import { Order, REVERSED, reversed } from "./reversal.js";
import { viewAgreement, volumesOf } from "./measures.js";

/** @typedef {import("./grid.js").Volume} Volume */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./localisation.js").BrainRegion} BrainRegion */

// The brain is looked for in every eighth coronal slice.
const EVERY = 8;
// The order of tissues shows in every sixteenth.
const EVERY_FOR_ORDER = 16;
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
 * @property {string[]} remarks on how it came about
 */

/**
 * @param {Volume} scan
 * @param {Model} model
 * @param {Say} say
 * @returns {Promise<Segmentation>}
 */
export async function segment(scan, model, say) {
  await say("conform", 0);
  const conformed = conform(scan);
  const remarks = [];
  let image = conformed;
  const whiteMatter = await findReversal(conformed, model, say);
  if (whiteMatter !== null) {
    image = { ...conformed, data: reversed(conformed.data, whiteMatter) };
  }
  let region = await findBrain(image, model, say);
  let fusion = await fuse(image, region, model, say);
  if (isTooSmall(region, fusion.classes)) {
    region = wholeRegion(image.shape);
    fusion = await fuse(image, region, model, say);
  }
  const working = cutGrid(image, region.box);
  if (model.settings.prior) {
    await say("prior", 0);
    remarks.push(await applyPrior(fusion, working, model));
  }
  if (whiteMatter !== null) remarks.push(REVERSED);
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
      image: { ...working, data: cutOut(conformed.data, image.shape, region.box) },
      classes: fusion.classes,
    },
    remarks,
  };
}

/**
 * Return the region in which the brain may be, from a few slices; the whole image if
 * none shows brain.
 * @param {Volume} image
 * @param {Model} model
 * @param {Say} say
 * @returns {Promise<BrainRegion>}
 */
async function findBrain(image, model, say) {
  const seen = new Uint8Array(image.data.length);
  const looked = await lookAt(image, model, EVERY, say, (place, { background }) => {
    seen[place] = background < BACKGROUND ? 1 : 0;
  });
  return brainRegion(seen, image.shape, looked, model.settings.views[0].along);
}

/**
 * The brightness of white matter of a scan that networks are to see reversed, by a few slices; null
 * of any other.
 * @param {Volume} image
 * @param {Model} model
 * @param {Say} say
 */
async function findReversal(image, model, say) {
  if (!model.settings.reverse_contrast) return null;
  const order = new Order(model.settings.classes);
  await lookAt(image, model, EVERY_FOR_ORDER, say, (place, { index, likelihood }) => {
    order.add(image.data[place], index, likelihood);
  });
  return order.whiteMatterIfReverse();
}

/**
 * Let the first view look at every n-th slice; `call` gets each voxel's place with what is seen
 * there. Returns the numbers of the slices.
 */
async function lookAt(image, model, every, say, call) {
  const [view] = model.settings.views;
  const slices = new Slices(image.shape, view);
  const looked = [];
  const { height, width } = slices;
  const padded = [height, width].map((side) =>
    Math.ceil(side / view.multiple) * view.multiple
  );
  const count = model.settings.classes.length;
  const nothing = new Float32Array(padded[0] * padded[1] * count);
  for (let number = every / 2; number < slices.count; number += every) {
    await say("localisation", number / slices.count);
    const given = slices.cut(image.data, view, [number], [0, height], [0, width]);
    const found = await model.runView(view, given, nothing, [1, padded[0], padded[1]]);
    const { background, classes, likelihood } = found;
    for (let row = 0; row < height; row++) {
      let place = number * slices.along + row * slices.rows;
      let at = row * padded[1];
      for (let column = 0; column < width; column++, place += slices.columns, at++) {
        call(place, {
          background: background[at],
          index: classes[at],
          likelihood: likelihood[at],
        });
      }
    }
    looked.push(number);
  }
  return looked;
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

// Set the working grid to background beyond the scan: labels there are in no label map, so
// they must not count in grades.
function forgetBeyond(fusion, working, scan) {
  beyond(working, scan).forEach((isBeyond, at) => {
    if (isBeyond) fusion.forget(at);
  });
}
