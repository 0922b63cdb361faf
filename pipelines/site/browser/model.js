// A model that `trinat export --format web` wrote: its settings, and its graphs in ONNX Runtime.

/**
 * @typedef {object} View
 * @property {string} name
 * @property {number} along the axis of the volume that slices run along
 * @property {number} rows the axis that their rows run along
 * @property {number} columns
 * @property {number} channels a slice and its neighbours
 * @property {number} multiple rows and columns are padded to multiples of this
 * @property {number} batch slices at a time
 * @property {boolean} merged whether its classes are without sides
 * @property {number} background what its background adds to the fusion
 * @property {string[]} processor_nodes what is computed on the processor in any case: numbers of
 *   half precision, which not every graphics card knows
 */

/**
 * @typedef {object} Class
 * @property {string} name
 * @property {string} abbreviation
 * @property {number} number FreeSurfer's
 * @property {string} color
 * @property {string} group
 * @property {number | null} partner the class of the other side
 * @property {string | null} side left or right
 * @property {boolean} predicted
 * @property {number} merged the class without sides
 */

/**
 * Grid of a template in its own mm, and the centroids of the classes that have one.
 * @typedef {object} Prior
 * @property {number} certain voxels whose class is as likely are left alone
 * @property {import("./grid.js").Triple} shape
 * @property {import("./grid.js").Matrix} affine
 * @property {(import("./grid.js").Triple | null)[]} centroids
 */

/**
 * @typedef {object} Settings
 * @property {string} model
 * @property {string} trinat
 * @property {string} licence
 * @property {string} contrast of the scans that it segments: "T1" or "any"
 * @property {string} csf
 * @property {Class[]} classes background first
 * @property {View[]} views in the order in which they are fused
 * @property {boolean} reverse_contrast whether a scan with other contrast is reversed
 * @property {Prior | null} prior
 * @property {any} limits of the grades; null is never reached
 * @property {Record<string, string[]>} measures the structures of each sum, by column
 */

export const ON_PROCESSOR = { executionProviders: ["wasm"] };

export class Model {
  /**
   * Load all graphs. `read(name)` gives the bytes of a file of the model's folder.
   * @param {any} ort ONNX Runtime
   * @param {(name: string) => Promise<ArrayBuffer>} read
   * @param {boolean} isOnGraphics whether the views are computed on the graphics card; the rest is
   *   computed on the processor
   */
  static async load(ort, read, isOnGraphics) {
    const text = new TextDecoder().decode(await read("settings.json"));
    /** @type {Settings} */
    const settings = JSON.parse(text);
    const sessions = new Map();
    const open = async (name, options) => {
      const bytes = new Uint8Array(await read(`${name}.onnx`));
      sessions.set(name, await ort.InferenceSession.create(bytes, options));
    };
    for (const view of settings.views) {
      await open(view.name, isOnGraphics ? onGraphics(view) : ON_PROCESSOR);
    }
    await open("fusion", ON_PROCESSOR);
    if (settings.prior) await open("prior", ON_PROCESSOR);
    const template = settings.prior ? new Blob([await read("template.gz")]) : null;
    return new Model(ort, settings, sessions, template, isOnGraphics);
  }

  constructor(ort, settings, sessions, packedTemplate, isOnGraphics) {
    this.isOnGraphics = isOnGraphics;
    this.packedTemplate = packedTemplate;
    this.ort = ort;
    /** @type {Settings} */
    this.settings = settings;
    this.sessions = sessions;
  }

  /**
   * A view of some slices.
   * @param {View} view
   * @param {Float32Array} slices (N, C, H, W); H and W are multiples of `view.multiple`
   * @param {Float32Array} before (N, H, W, K), what the other views have added
   * @param {import("./grid.js").Triple} size N, H, W
   * @returns {Promise<Record<"after" | "background" | "likelihood", Float32Array>
   *   & { classes: Uint8Array }>}
   */
  async runView(view, slices, before, size) {
    const [count, rows, columns] = size;
    const classes = this.settings.classes.length;
    const given = {
      slices: new this.ort.Tensor("float32", slices, [
        count,
        view.channels,
        rows,
        columns,
      ]),
      before: new this.ort.Tensor("float32", before, [count, rows, columns, classes]),
    };
    const found = await this.sessions.get(view.name).run(given);
    return {
      after: found.after.data,
      classes: found.classes.data,
      background: found.background.data,
      likelihood: found.likelihood.data,
    };
  }

  /**
   * The fused probabilities (V, K) of what all views have added, (V, K).
   * @param {Float32Array} added
   * @returns {Promise<Float32Array>}
   */
  finish(added) {
    return this.runOfVoxels("fusion", { added });
  }

  /**
   * Probabilities (V, K) with what a template has there, (V, K) of 255.
   * @param {Float32Array} shares
   * @param {Float32Array} before
   * @returns {Promise<Float32Array>}
   */
  weigh(shares, before) {
    return this.runOfVoxels("prior", { shares, before });
  }

  async runOfVoxels(name, values) {
    const classes = this.settings.classes.length;
    const given = {};
    for (const [key, data] of Object.entries(values)) {
      const size = [data.length / classes, classes];
      given[key] = new this.ort.Tensor("float32", data, size);
    }
    const found = await this.sessions.get(name).run(given);
    return found.probabilities.data;
  }

  /** @returns {Promise<Uint8Array>} the template's shares; held only as long as they are used */
  async template() {
    const stream = this.packedTemplate.stream();
    const plain = stream.pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(plain).arrayBuffer());
  }
}

/** @param {View} view */
function onGraphics(view) {
  const webgpu = { name: "webgpu", forceCpuNodeNames: view.processor_nodes };
  return { executionProviders: [webgpu, "wasm"] };
}
