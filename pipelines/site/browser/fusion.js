// Slices of a volume to the networks, and what they add to the fusion of all views.
// The same as ViewNetwork and ViewAggregator in segmentation/inference/; what is computed from the
// values is in the graphs.
import { NUMBERS, toBits } from "./half.js";

/** @typedef {import("./grid.js").Triple} Triple */
/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").View} View */

/** From the first row or column to before the last. @typedef {[number, number]} Span */

const ONE = toBits(1);
// Voxels whose fusion is finished at a time.
const VOXELS_AT_A_TIME = 1 << 15;

/** Positions of a view's slices in a volume of some shape, the first axis fastest. */
export class Slices {
  /**
   * @param {Triple} shape
   * @param {View} view
   */
  constructor(shape, view) {
    const strides = [1, shape[0], shape[0] * shape[1]];
    this.count = shape[view.along];
    this.height = shape[view.rows];
    this.width = shape[view.columns];
    this.along = strides[view.along];
    this.rows = strides[view.rows];
    this.columns = strides[view.columns];
  }

  /**
   * Slices with their neighbours as channels, padded with zeros to multiples: (N, C, H, W).
   * @param {number[]} numbers
   * @param {Span} rows
   * @param {Span} columns
   */
  cut(image, view, numbers, rows, columns) {
    const height = paddedTo(rows[1] - rows[0], view.multiple);
    const width = paddedTo(columns[1] - columns[0], view.multiple);
    const reach = Math.floor(view.channels / 2);
    const out = new Float32Array(numbers.length * view.channels * height * width);
    let plane = 0;
    for (const number of numbers) {
      for (let slice = number - reach; slice <= number + reach; slice++) {
        if (slice >= 0 && slice < this.count) {
          this.copyPlane(image, out, plane, slice, rows, columns, width);
        }
        plane += height * width;
      }
    }
    return out;
  }

  copyPlane(image, out, plane, slice, rows, columns, width) {
    for (let row = rows[0]; row < rows[1]; row++) {
      let from = slice * this.along + row * this.rows + columns[0] * this.columns;
      let to = plane + (row - rows[0]) * width;
      for (let column = columns[0]; column < columns[1]; column++) {
        out[to++] = image[from];
        from += this.columns;
      }
    }
  }

  /**
   * Rows and columns around a mask of some slices, grown where they can to a multiple; null where
   * nothing is set.
   * @returns {{ rows: Span, columns: Span } | null}
   */
  around(mask, numbers, multiple) {
    const rows = [Infinity, -1];
    const columns = [Infinity, -1];
    for (const number of numbers) {
      for (let row = 0; row < this.height; row++) {
        let at = number * this.along + row * this.rows;
        for (let column = 0; column < this.width; column++, at += this.columns) {
          if (!mask[at]) continue;
          rows[0] = Math.min(rows[0], row);
          rows[1] = Math.max(rows[1], row);
          columns[0] = Math.min(columns[0], column);
          columns[1] = Math.max(columns[1], column);
        }
      }
    }
    if (rows[1] < 0) return null;
    return {
      rows: grownSpan(rows[0], rows[1] + 1, this.height, multiple),
      columns: grownSpan(columns[0], columns[1] + 1, this.width, multiple),
    };
  }
}

const paddedTo = (length, multiple) => Math.ceil(length / multiple) * multiple;

/** @returns {Span} as far to both sides as makes a multiple, within a line of some length */
export function grownSpan(first, end, length, multiple) {
  const needed = end - first;
  const wanted = Math.min(length, paddedTo(needed, multiple));
  const before = Math.floor((wanted - needed) / 2);
  const start = Math.min(Math.max(0, first - before), length - wanted);
  return [start, start + wanted];
}

/** The sum of what the views of a volume add, and at last its probabilities. */
export class Fusion {
  /**
   * @param {Model} model
   * @param {Triple} shape
   */
  constructor(model, shape) {
    this.model = model;
    this.shape = shape;
    this.count = model.settings.classes.length;
    const voxels = shape[0] * shape[1] * shape[2];
    // The bits of halves. The classes of a voxel lie side by side.
    this.values = new Uint16Array(voxels * this.count);
    // The most probable class of each voxel, once the fusion is finished.
    this.classes = new Uint8Array(voxels);
    // Labels of each single view.
    this.maps = new Map();
  }

  /**
   * Add a view of an image; `mask` is where to look, or null for everywhere.
   * @param {Float32Array} image
   * @param {View} view
   * @param {Uint8Array | null} mask
   * @param {(slices: number) => Promise<void>} say is called with how many slices were done
   */
  async addView(image, view, mask, say) {
    const slices = new Slices(this.shape, view);
    const map = new Uint8Array(this.classes.length);
    this.maps.set(view.name, map);
    for (let first = 0; first < slices.count; first += view.batch) {
      const end = Math.min(first + view.batch, slices.count);
      const numbers = [];
      for (let number = first; number < end; number++) numbers.push(number);
      let part = {
        rows: /** @type {Span} */ ([0, slices.height]),
        columns: /** @type {Span} */ ([0, slices.width]),
      };
      if (mask) part = slices.around(mask, numbers, view.multiple);
      this.addBackground(slices, view, numbers, part);
      if (part) await this.addPart(image, view, slices, numbers, part, map);
      await say(numbers.length);
    }
  }

  async addPart(image, view, slices, numbers, { rows, columns }, map) {
    const given = slices.cut(image, view, numbers, rows, columns);
    const height = paddedTo(rows[1] - rows[0], view.multiple);
    const width = paddedTo(columns[1] - columns[0], view.multiple);
    const { count, values } = this;
    const before = new Float32Array(numbers.length * height * width * count);
    // Calls with the first voxel of each row in the volume, and its place in the batch.
    const eachRow = (call) => {
      numbers.forEach((number, n) => {
        const plane = number * slices.along + columns[0] * slices.columns;
        for (let row = rows[0]; row < rows[1]; row++) {
          call(plane + row * slices.rows, (n * height + row - rows[0]) * width);
        }
      });
    };
    const length = columns[1] - columns[0];
    eachRow((place, at) => {
      for (let column = 0; column < length; column++) {
        const from = (place + column * slices.columns) * count;
        const to = (at + column) * count;
        for (let k = 0; k < count; k++) before[to + k] = NUMBERS[values[from + k]];
      }
    });
    const size = [numbers.length, height, width];
    const { after, classes } = await this.model.runView(view, given, before, size);
    eachRow((place, at) => {
      for (let column = 0; column < length; column++) {
        const voxel = place + column * slices.columns;
        const from = (at + column) * count;
        map[voxel] = classes[at + column];
        for (let k = 0; k < count; k++) {
          values[voxel * count + k] = toBits(after[from + k]);
        }
      }
    });
  }

  // Beyond the rows and columns that are looked at all is background.
  addBackground(slices, view, numbers, part) {
    const weight = NUMBERS[toBits(view.background)];
    const { values, count } = this;
    for (const number of numbers) {
      for (let row = 0; row < slices.height; row++) {
        const isInside = part && row >= part.rows[0] && row < part.rows[1];
        let place = number * slices.along + row * slices.rows;
        for (let column = 0; column < slices.width; column++) {
          const isLookedAt = isInside && column >= part.columns[0] &&
            column < part.columns[1];
          if (!isLookedAt) {
            const at = place * count;
            values[at] = toBits(NUMBERS[values[at]] + weight);
          }
          place += slices.columns;
        }
      }
    }
  }

  /** Make the fused probabilities of what was added, and find the most probable classes. */
  async finish() {
    const places = new Int32Array(VOXELS_AT_A_TIME);
    let waiting = 0;
    for (let voxel = 0; voxel < this.classes.length; voxel++) {
      // Voxels that are background in all views stay background.
      if (this.isBackground(voxel)) {
        this.forget(voxel);
        continue;
      }
      places[waiting] = voxel;
      waiting += 1;
      if (waiting === places.length) {
        await this.finishAt(places);
        waiting = 0;
      }
    }
    if (waiting) await this.finishAt(places.subarray(0, waiting));
  }

  isBackground(voxel) {
    const end = (voxel + 1) * this.count;
    for (let at = voxel * this.count + 1; at < end; at++) {
      if (this.values[at]) return false;
    }
    return true;
  }

  async finishAt(places) {
    this.set(places, await this.model.finish(this.valuesAt(places)));
  }

  /** The values of some voxels, (V, K). */
  valuesAt(places) {
    const { count, values } = this;
    const found = new Float32Array(places.length * count);
    places.forEach((place, n) => {
      for (let k = 0; k < count; k++) {
        found[n * count + k] = NUMBERS[values[place * count + k]];
      }
    });
    return found;
  }

  /** Give some voxels probabilities, (V, K), and their most probable classes. */
  set(places, found) {
    const { count, values, classes } = this;
    places.forEach((place, n) => {
      const first = n * count;
      let best = 0;
      for (let k = 0; k < count; k++) {
        values[place * count + k] = toBits(found[first + k]);
        if (found[first + k] > found[first + best]) best = k;
      }
      classes[place] = best;
    });
  }

  /** The largest of a voxel's probabilities. */
  likelihood(place) {
    return NUMBERS[this.values[place * this.count + this.classes[place]]];
  }

  /** Add a share of a voxel's probabilities to sums, (K,). */
  addShare(place, sums, share) {
    const first = place * this.count;
    for (let k = 0; k < this.count; k++) {
      sums[k] += share * NUMBERS[this.values[first + k]];
    }
  }

  /** Make a voxel background. */
  forget(place) {
    this.values.fill(0, place * this.count, (place + 1) * this.count);
    this.values[place * this.count] = ONE;
    this.classes[place] = 0;
  }
}
