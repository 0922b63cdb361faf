// Decide whether networks run on the graphics card: only if it gives the same labels as
// the processor, and faster.

import { ON_PROCESSOR } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").View} View */

// Share of a made slice's pixels that may have another class, because rounding decides
// some.
const OTHERS_AT_MOST = 0.001;
const SLICES = 4;
const SIDE = 96;

/**
 * Return true if the browser supports the runtime: WebGPU, and WebAssembly that can wait
 * for it. A software adapter counts only on request.
 * @param {boolean} isAskedFor
 * @returns {Promise<boolean>}
 */
export async function hasGraphics(isAskedFor) {
  if (!("Suspending" in WebAssembly)) return false;
  /** @type {any} not among the types of all workers */
  const { gpu } = navigator;
  const adapter = await gpu?.requestAdapter().catch(() => null);
  return Boolean(adapter) && (isAskedFor || !adapter.info?.isFallbackAdapter);
}

/**
 * Compare all networks on the graphics card with the same on the processor, by slices that are made.
 * One build of the runtime computed convolutions of some counts of channels wrongly.
 * @param {any} ort ONNX Runtime
 * @param {Model} model with its networks on the graphics card
 * @param {(name: string) => Promise<ArrayBuffer>} read
 * @returns {Promise<{ isSame: boolean, isSooner: boolean }>}
 */
export async function compare(ort, model, read) {
  let isSame = true;
  let graphicsMs = 0;
  let processorMs = 0;
  for (const view of model.settings.views) {
    const given = madeFor(ort, view, model.settings.classes.length);
    const graphics = model.sessions.get(view.name);
    // The first time its programs are made.
    await graphics.run(given);
    const onGraphics = await timed(graphics, given);
    graphicsMs += onGraphics.ms;
    const bytes = new Uint8Array(await read(`${view.name}.onnx`));
    const processor = await ort.InferenceSession.create(bytes, ON_PROCESSOR);
    const onProcessor = await timed(processor, given);
    processorMs += onProcessor.ms;
    await processor.release();
    let others = 0;
    onProcessor.classes.forEach((expected, at) => {
      if (onGraphics.classes[at] !== expected) others += 1;
    });
    isSame &&= others <= OTHERS_AT_MOST * onProcessor.classes.length;
  }
  return { isSame, isSooner: graphicsMs < processorMs };
}

async function timed(session, given) {
  const began = performance.now();
  const found = await session.run(given);
  return { classes: found.classes.data, ms: performance.now() - began };
}

/** @param {View} view */
function madeFor(ort, view, classes) {
  const shape = [SLICES, view.channels, SIDE, SIDE];
  const before = [SLICES, SIDE, SIDE, classes];
  return {
    slices: new ort.Tensor("float32", madeSlices(shape), shape),
    before: new ort.Tensor("float32", new Float32Array(before.reduce(times)), before),
  };
}

const times = (one, other) => one * other;

// Waves and noise between 0 and 1; nothing is constant, where rounding would decide.
function madeSlices(shape) {
  const values = new Float32Array(shape.reduce(times));
  let noise = 1;
  for (let at = 0; at < values.length; at++) {
    noise = (noise * 16807) % 2147483647;
    values[at] = 0.5 + 0.4 * Math.sin(at * 0.013) + (0.1 * noise) / 2147483647;
  }
  return values;
}
