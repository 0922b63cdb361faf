// The brush: which voxels a stroke of NiiVue's pen changes, and undo and redo of strokes.

/** @type {any} of a script of its own, which the page loads first */
const { Niivue } = globalThis["niivue"];
// Value of a voxel to paint over for "anywhere".
export const ANYWHERE = -1;
const MOST_STROKES = 200;

// NiiVue's texture units for the gradients of a scan, and for the blurred scan that they
// are computed from.
const UNITS_OF_GRADIENTS = [
  WebGL2RenderingContext.TEXTURE6,
  WebGL2RenderingContext.TEXTURE8,
];

// NiiVue with its drawing (pointer, bitmap, texture), and our brush in the place of its square pen.
export class Canvas extends Niivue {
  constructor(options) {
    super(options);
    this.brush = new Brush();
  }

  // Gradients serve NiiVue's volume rendering, which is not used here, and cost most of the time that
  // a scan takes to appear without a graphics card: they have one voxel a slice.
  rgbaTex(texture, unit, dims, isFilled) {
    if (UNITS_OF_GRADIENTS.includes(unit)) dims = [dims[0], 1, 1, dims[3]];
    return super.rgbaTex(texture, unit, dims, isFilled);
  }

  drawPt(x, y, z) {
    this.brush.touch([x, y, z], this.drawPenAxCorSag);
  }

  drawPenLine(to, from) {
    this.brush.line(from, to, this.drawPenAxCorSag);
  }

  drawPenFilled() {
    this.brush.fill(this.drawPenFillPts, this.drawPenAxCorSag);
    this.drawPenFillPts = [];
    this.drawAddUndoBitmap();
    this.refreshDrawing(true);
  }

  // The end of a stroke. NiiVue keeps all voxels of the last eight, and has no redo.
  drawAddUndoBitmap() {
    this.brush.end();
  }

  // NiiVue forgets a stroke when the pointer leaves the picture.
  mouseLeaveListener() {
    this.brush.end();
    super.mouseLeaveListener();
  }
}

export class Brush {
  constructor() {
    this.tool = "paint";
    // The structure that is painted, and the only one that is painted over, by their places.
    this.place = 0;
    this.within = ANYWHERE;
    this.sizeMm = 4;
    this.solid = false;
    // Called when voxels have changed.
    this.changed = () => {};
    this.take(null, [0, 0, 0], [1, 1, 1]);
  }

  // Paint on a bitmap (a byte a voxel, the first axis first) from now on.
  take(bitmap, dims, spacingMm) {
    this.bitmap = bitmap;
    this.dims = dims;
    this.spacingMm = spacingMm;
    // The bitmap as it was before the stroke.
    this.before = bitmap?.slice();
    this.done = [];
    this.undone = [];
  }

  // The first point of a stroke, on the plane of a view of NiiVue's.
  touch(point, view) {
    if (!this.bitmap) return;
    if (this.tool === "replace") this._replacePart(point, view);
    else this._dab(point, view);
  }

  line(from, to, view) {
    if (!this.bitmap || this.tool === "replace") return;
    const along = to.map((end, axis) => end - from[axis]);
    const steps = Math.max(...along.map(Math.abs));
    for (let step = 1; step <= steps; step++) {
      const point = from.map((start, axis) =>
        Math.round(start + (along[axis] * step) / steps)
      );
      this._dab(point, view);
    }
  }

  // Everything inside an outline of points on the plane of a view.
  fill(points, view) {
    if (!this.bitmap || points.length < 3) return;
    const across = axisAcross(view);
    const [a, b] = [0, 1, 2].filter((axis) => axis !== across);
    const low = Math.min(...points.map((point) => point[b]));
    const high = Math.max(...points.map((point) => point[b]));
    for (let row = low; row <= high; row++) {
      const crossings = crossingsOf(points, a, b, row);
      for (let n = 0; n + 1 < crossings.length; n += 2) {
        const last = Math.floor(crossings[n + 1]);
        for (let column = Math.ceil(crossings[n]); column <= last; column++) {
          const voxel = [...points[0]];
          voxel[a] = column;
          voxel[b] = row;
          this._put(this._index(voxel));
        }
      }
    }
  }

  end() {
    if (!this.bitmap) return;
    const { indices, places: after } = this.changesFrom(this.before);
    if (!indices.length) return;
    const before = Uint8Array.from(indices, (index) => this.before[index]);
    this.before.set(this.bitmap);
    this.done.push({ indices, before, after });
    if (this.done.length > MOST_STROKES) this.done.shift();
    this.undone = [];
    this.changed();
  }

  undo() {
    this._move(this.done, this.undone, "before");
  }

  redo() {
    this._move(this.undone, this.done, "after");
  }

  // Voxels that come from elsewhere, as one stroke.
  put(indices, places) {
    indices.forEach((index, n) => this.bitmap[index] = places[n]);
    this.end();
  }

  // The voxels that differ from another bitmap, and their places.
  changesFrom(base) {
    const indices = [];
    for (let index = 0; index < base.length; index++) {
      if (base[index] !== this.bitmap[index]) indices.push(index);
    }
    const places = Uint8Array.from(indices, (index) => this.bitmap[index]);
    return { indices: Uint32Array.from(indices), places };
  }

  _move(from, to, which) {
    const stroke = from.pop();
    if (!stroke) return;
    for (const bitmap of [this.bitmap, this.before]) {
      stroke.indices.forEach((index, n) => bitmap[index] = stroke[which][n]);
    }
    to.push(stroke);
    this.changed();
  }

  // A disc on the plane, or a ball.
  _dab(point, view) {
    const radiusMm = this.sizeMm / 2;
    const reach = this.spacingMm.map((mm) => Math.floor(radiusMm / mm));
    if (!this.solid) reach[axisAcross(view)] = 0;
    if (this.tool === "fill") reach.fill(0);
    const [I, J, K] = reach;
    for (let k = -K; k <= K; k++) {
      for (let j = -J; j <= J; j++) {
        for (let i = -I; i <= I; i++) {
          const offsetMm = [i, j, k].map((voxels, axis) =>
            voxels * this.spacingMm[axis]
          );
          if (Math.hypot(...offsetMm) > radiusMm && (i || j || k)) continue;
          this._put(this._index([point[0] + i, point[1] + j, point[2] + k]));
        }
      }
    }
  }

  // The part of a structure that is connected with a point, on the plane or in all directions.
  _replacePart(point, view) {
    const [X, Y] = this.dims;
    const strides = [1, X, X * Y];
    const start = this._index(point);
    const seen = new Uint8Array(this.bitmap.length);
    seen[start] = 1;
    // A number a voxel: the background of a scan has millions.
    const open = [start];
    while (open.length) {
      const index = open.pop();
      this._put(index);
      for (let axis = 0; axis < 3; axis++) {
        if (!this.solid && axis === axisAcross(view)) continue;
        const position = Math.floor(index / strides[axis]) % this.dims[axis];
        for (const by of [-1, 1]) {
          const isInside = position + by >= 0 && position + by < this.dims[axis];
          const next = index + by * strides[axis];
          if (!isInside || seen[next]) continue;
          seen[next] = 1;
          if (this.before[next] === this.before[start]) open.push(next);
        }
      }
    }
  }

  // Give a voxel the structure of the tool, unless it is to be left alone.
  _put(index) {
    if (index < 0) return;
    if (this.within !== ANYWHERE && this.before[index] !== this.within) return;
    this.bitmap[index] = this.tool === "erase" ? 0 : this.place;
  }

  // -1 outside of the scan.
  _index(voxel) {
    const [i, j, k] = voxel;
    const [X, Y, Z] = this.dims;
    if (i < 0 || j < 0 || k < 0 || i >= X || j >= Y || k >= Z) return -1;
    return i + X * (j + Y * k);
  }
}

// The axis that slices of a view of NiiVue's (0 axial, 1 coronal, 2 sagittal) run along.
const axisAcross = (view) => 2 - view;

// Return the positions at which an outline crosses the middle of a row of voxels along the
// axis `a`, in order.
function crossingsOf(points, a, b, row) {
  const crossings = [];
  points.forEach((point, n) => {
    const next = points[(n + 1) % points.length];
    const isBelow = point[b] <= row;
    if (isBelow === next[b] <= row) return;
    const share = (row - point[b]) / (next[b] - point[b]);
    crossings.push(point[a] + share * (next[a] - point[a]));
  });
  return crossings.sort((one, other) => one - other);
}
