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
 * @typedef {object} Settings
 * @property {string} model
 * @property {string} trinat
 * @property {string} licence
 * @property {string} csf
 * @property {Class[]} classes background first
 * @property {View[]} views in the order in which they are fused
 * @property {any} limits of the grades; null is never reached
 */

export class Model {
  /**
   * Load all graphs. `read(name)` gives the bytes of a file of the model's folder.
   * @param {any} ort ONNX Runtime
   * @param {(name: string) => Promise<ArrayBuffer>} read
   * @param {any} options of the sessions
   */
  static async load(ort, read, options) {
    const text = new TextDecoder().decode(await read("settings.json"));
    /** @type {Settings} */
    const settings = JSON.parse(text);
    const sessions = new Map();
    for (const name of [...settings.views.map((view) => view.name), "fusion"]) {
      const bytes = new Uint8Array(await read(`${name}.onnx`));
      sessions.set(name, await ort.InferenceSession.create(bytes, options));
    }
    return new Model(ort, settings, sessions);
  }

  constructor(ort, settings, sessions) {
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
   * @returns {Promise<{ after: Float32Array, classes: Uint8Array, background: Float32Array }>}
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
    };
  }

  /**
   * The fused probabilities (V, K) of what all views have added, (V, K).
   * @param {Float32Array} added
   * @returns {Promise<Float32Array>}
   */
  async finish(added) {
    const classes = this.settings.classes.length;
    const size = [added.length / classes, classes];
    const given = { added: new this.ort.Tensor("float32", added, size) };
    const found = await this.sessions.get("fusion").run(given);
    return found.probabilities.data;
  }
}
