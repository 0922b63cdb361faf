// The picture: three planes and a solid view on two canvases, by NiiVue.
import { Canvas } from "./brush.js";

// A script of its own, which the page loads first.
const niivue = globalThis["niivue"];
const GREY = [0.42, 0.72, 0.98, 0.9];
const COMMON = {
  logLevel: "error",
  backColor: [0, 0, 0, 1],
  crosshairColor: GREY,
  dragAndDropEnabled: false,
  isColorbar: false,
  viewModeHotKey: "",
  clipPlaneHotKey: "",
  cycleClipPlaneHotKey: "",
  fontColor: [0.62, 0.67, 0.73, 1],
  showAllOrientationMarkers: true,
};
// Colours, opacity, and the values that are shown as the first and the last of them.
const OVERLAYS = {
  entropy: ["inferno", 0.75, null, 15, 255],
  mask: ["green", 1, null, 60, 160],
};
const PLANES = { axial: 0, coronal: 1, sagittal: 2 };
// Surfaces in a larger box, in mm³, enclose others, which are seen through them.
const LARGE_BOX = 500000;
const QUARTERS = [
  { sliceType: 0, position: [0, 0, 0.5, 0.5] },
  { sliceType: 1, position: [0.5, 0, 0.5, 0.5] },
  { sliceType: 2, position: [0, 0.5, 0.5, 0.5] },
];

export class Picture {
  constructor(canvas, solidCanvas, structures, moved) {
    this.canvas = canvas;
    this.solidCanvas = solidCanvas;
    this.structures = structures;
    this.moved = moved;
    // The places of structures that are not shown.
    this.hidden = new Set();
    this.colors = structures.map((structure) => rgb(structure.color));
    this.selected = 0;
    // Work that began before the last clear() is not shown after it.
    this.turn = 0;
    // A byte a voxel, the first axis first: of the scan, and of the map to compare with.
    this.labels = null;
    this.against = null;
    this.dims = null;
    // NiiVue of the planes, and, once there are surfaces, of these.
    this.nv = null;
    this.solid = null;
    this.opacity = 0.5;
    this.state = {
      outline: false,
      shown: true,
      flipped: false,
      painting: false,
      window: [0, 255],
      radiological: false,
    };
  }

  // Set the structures of the following labels: all are shown, none is chosen.
  setStructures(structures) {
    this.structures = structures;
    this.colors = structures.map((structure) => rgb(structure.color));
    this.hidden = new Set();
    this.selected = 0;
    if (!this.nv) return;
    this._colour();
    this.nv.refreshColormaps();
  }

  async start() {
    this.nv = new Canvas({
      ...COMMON,
      crosshairGap: 12,
      crosshairWidth: 0.6,
      crosshairWidthUnit: "mm",
      multiplanarShowRender: 0,
      dragMode: 3,
      isRadiologicalConvention: this.state.radiological,
    });
    await this.nv.attachToCanvas(this.canvas);
    this.nv.setCustomLayout(QUARTERS);
    this.nv.onLocationChange = (at) => this._moved(at);
    this.nv.drawOpacity = this.opacity;
    this._colour();
  }

  // The scan (NIfTI) and its labels; with `keep` the cross-hair stays where it is.
  async show(scan, labels, { keep = true } = {}) {
    const { nv, turn } = this;
    const [low, high] = this.state.window;
    let at = null;
    if (keep && nv.volumes.length) at = this.at();
    const look = ["gray", 1, null, low, high];
    const image = await niivue.NVImage.new(scan, "scan.nii", ...look);
    if (turn !== this.turn) return;
    const overlay = nv.volumes[1];
    nv.volumes = [];
    nv.drawBitmap = null;
    nv.addVolume(image);
    if (overlay) nv.addVolume(overlay);
    this.labels = labels;
    this.against = null;
    this.dims = image.dimsRAS.slice(1, 4);
    this._redraw();
    this.move(at || this.centre(0));
  }

  // Black, without a scan, labels, overlay or surfaces.
  clear() {
    const { nv } = this;
    this.turn += 1;
    this.labels = null;
    this.against = null;
    this.dims = null;
    if (nv.volumes.length) {
      nv.volumes = [];
      nv.drawBitmap = null;
      nv.drawScene();
    }
    this.clearSurfaces();
  }

  // A scan that has no labels yet, with the cross-hair in its middle.
  async showAlone(scan) {
    const { turn } = this;
    await this.show(scan, new Uint8Array(0), { keep: false });
    if (turn !== this.turn) return;
    this.nv.drawBitmap = null;
    this.labels = null;
    this.nv.scene.crosshairPos = [0.5, 0.5, 0.5];
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  _redraw() {
    const { nv } = this;
    let bitmap = this.labels;
    if (this.state.flipped && this.against) bitmap = this.against;
    if (!bitmap?.length || !nv.volumes.length) return;
    nv.drawTexture = nv.r8Tex(nv.drawTexture, nv.gl.TEXTURE7, nv.back.dims, true);
    nv.drawBitmap = bitmap;
    this._look();
    this._pen();
    nv.refreshDrawing(true);
  }

  // Set whether the pointer paints, and whether it draws an outline to fill.
  setPainting(on, filled = false) {
    this.state.painting = on;
    this.nv.setPenValue(1, filled);
    this._pen();
  }

  // Only the scan's own labels are painted.
  _pen() {
    const { painting, flipped } = this.state;
    this.nv.setDrawingEnabled(painting && !flipped);
  }

  flip(on, bitmap = this.against) {
    this.against = bitmap;
    this.state.flipped = on && Boolean(bitmap);
    this._redraw();
  }

  setOpacity(value) {
    this.opacity = value;
    this._look();
    this.nv.drawScene();
  }

  setOutline(on) {
    this.state.outline = on;
    this._look();
    this.nv.drawScene();
  }

  setShown(on) {
    this.state.shown = on;
    this._look();
    this.nv.drawScene();
  }

  _look() {
    const { nv, opacity } = this;
    const { outline, shown } = this.state;
    nv.drawOpacity = shown ? opacity : 0;
    nv.drawRimOpacity = -1;
    if (outline && shown && opacity) {
      // The rest must not be wholly transparent, or NiiVue draws no rim either.
      nv.drawOpacity = 0.004;
      nv.drawRimOpacity = 0.35 + 0.65 * opacity;
    }
  }

  // Radiological: the person's left is on the right of the picture.
  setRadiological(on) {
    this.state.radiological = on;
    this.nv.setRadiologicalConvention(on);
    this.nv.drawScene();
  }

  // Return both canvases as one picture.
  snapshot(layout) {
    const shot = document.createElement("canvas");
    const { width, height } = this.canvas;
    shot.width = width;
    shot.height = height;
    const pen = shot.getContext("2d");
    // Each canvas is copied in the turn in which it was drawn: later it is empty.
    if (layout !== "solid") {
      this.nv.drawScene();
      pen.drawImage(this.canvas, 0, 0);
    }
    if (this.solid && layout === "solid") {
      this.solid.drawScene();
      pen.drawImage(this.solidCanvas, 0, 0, width, height);
    }
    if (this.solid && layout === "all") {
      this.solid.drawScene();
      pen.drawImage(this.solidCanvas, width / 2, height / 2, width / 2, height / 2);
    }
    return new Promise((done) => shot.toBlob(done, "image/png"));
  }

  setWindow(low, high) {
    this.state.window = [low, high];
    const volume = this.nv.volumes[0];
    if (!volume) return;
    volume.cal_min = low;
    volume.cal_max = Math.max(high, low + 1);
    this.nv.updateGLVolume();
  }

  // Set the overlay of the scan: entropy, the outline of the mask, or (without bytes)
  // nothing.
  async setOverlay(bytes, kind) {
    const { nv, turn } = this;
    if (nv.volumes[1]) nv.removeVolume(nv.volumes[1]);
    if (!bytes) return;
    const image = await niivue.NVImage.new(bytes, `${kind}.nii`, ...OVERLAYS[kind]);
    if (turn === this.turn) nv.addVolume(image);
  }

  setHidden(place, hide) {
    if (hide) this.hidden.add(place);
    else this.hidden.delete(place);
    this._recolour();
  }

  // Structures at these places alone; all of null.
  showOnly(places) {
    this.hidden = new Set();
    this.structures.forEach((_, n) => {
      if (places && !places.has(n + 1)) this.hidden.add(n + 1);
    });
    this._recolour();
  }

  select(place) {
    this.selected = place;
    if (place) this.nv.brush.place = place;
    this._solidLook();
  }

  _recolour() {
    this._colour();
    this.nv.refreshColormaps();
    this.nv.drawScene();
    this._solidLook();
  }

  _colour() {
    const lut = new Uint8ClampedArray(1024);
    this.colors.forEach((color, n) => {
      const alpha = this.hidden.has(n + 1) ? 0 : 255;
      lut.set([...color, alpha], 4 * (n + 1));
    });
    const names = this.structures.map((structure) => structure.name);
    this.nv.drawLut = { lut, labels: ["", ...names, ...Array(256).fill("")] };
  }

  setLayout(name) {
    const { nv } = this;
    if (name === "all") {
      nv.setCustomLayout(QUARTERS);
    } else if (name in PLANES) {
      nv.clearCustomLayout();
      nv.setSliceType(PLANES[name]);
    }
    this.resize();
  }

  resize() {
    this.nv.resizeListener();
    this.solid?.resizeListener();
  }

  // The cross-hair in mm of the world. Without `true`, NiiVue leaves out that a scan is oblique.
  at() {
    const { nv } = this;
    return Array.from(nv.frac2mm(nv.scene.crosshairPos, 0, true)).slice(0, 3);
  }

  move(mm) {
    if (mm && this.nv.volumes.length) this._moveTo(this.nv.mm2frac(mm, 0, true));
  }

  // Along the axes of the scan, so that a key moves through the slices of one plane only.
  step(axis, by) {
    const { nv } = this;
    if (!nv.volumes.length) return;
    const mm = Array.from(nv.frac2mm(nv.scene.crosshairPos)).slice(0, 3);
    mm[axis] += by;
    this._moveTo(nv.mm2frac(mm));
  }

  _moveTo(fraction) {
    this.nv.scene.crosshairPos = fraction;
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  // The voxel of a structure (0: of any) that is nearest to its centre of gravity, in mm.
  centre(place) {
    let count = 0;
    const sum = [0, 0, 0];
    this._visit(place, (i, j, k) => {
      count += 1;
      sum[0] += i;
      sum[1] += j;
      sum[2] += k;
    });
    if (!count) return null;
    const [x, y, z] = sum.map((of) => of / count);
    let least = Infinity;
    let nearest = [x, y, z];
    this._visit(place, (i, j, k) => {
      const squared = (i - x) ** 2 + (j - y) ** 2 + (k - z) ** 2;
      if (squared < least) {
        least = squared;
        nearest = [i, j, k];
      }
    });
    const { matRAS } = this.nv.volumes[0];
    return Array.from(this.nv.vox2mm(nearest, matRAS)).slice(0, 3);
  }

  // Call a function with the indices of each voxel of a structure (0: of any).
  _visit(place, call) {
    const { labels } = this;
    const [X, Y] = this.dims;
    for (let at = 0; at < labels.length; at++) {
      const label = labels[at];
      if (label && (!place || label === place)) {
        call(at % X, Math.floor(at / X) % Y, Math.floor(at / (X * Y)));
      }
    }
  }

  // The place of the structure under the cross-hair; 0 for none.
  under() {
    const { nv, labels } = this;
    const [i, j, k] = nv.frac2vox(nv.scene.crosshairPos);
    const [X, Y] = this.dims;
    return labels[i + X * (j + Y * k)];
  }

  // Voxels of each structure in what is shown.
  counts() {
    const counts = new Float64Array(256);
    for (const label of this.labels) counts[label]++;
    return counts;
  }

  voxelMm3() {
    const [, x, y, z] = this.nv.volumes[0].pixDimsRAS;
    return x * y * z;
  }

  _moved(at) {
    const [i, j, k] = at.vox;
    const [X, Y] = this.dims || [0, 0];
    const bitmap = this.nv.drawBitmap;
    let place = 0;
    if (bitmap) place = bitmap[i + X * (j + Y * k)];
    const mm = Array.from(at.mm).slice(0, 3);
    if (this.solid?.meshes.length) {
      this.solid.scene.crosshairPos = this.solid.mm2frac(mm);
      this.solid.drawScene();
    }
    this.moved({ place, mm, voxel: [i, j, k], dims: this.dims });
  }

  // For each structure its place and counts (3 uint32), vertices (float32) and faces (uint32).
  async setSurfaces(buffer) {
    const { turn } = this;
    if (!this.solid) {
      this.solid = new niivue.Niivue({
        ...COMMON,
        show3Dcrosshair: true,
        crosshairWidth: 1,
        crosshairWidthUnit: "mm",
        sliceType: 4,
        isOrientCube: true,
      });
      await this.solid.attachToCanvas(this.solidCanvas);
      this.solid.scene.renderAzimuth = 120;
      this.solid.scene.renderElevation = 15;
    }
    if (turn !== this.turn) return;
    const nv = this.solid;
    this.clearSurfaces();
    if (!buffer.byteLength) return;
    const meshes = [];
    let at = 0;
    const take = (bytes) => {
      at += bytes;
      return buffer.slice(at - bytes, at);
    };
    while (at < buffer.byteLength) {
      const [place, points, faces] = new Uint32Array(take(12));
      const vertices = new Float32Array(take(12 * points));
      const triangles = new Uint32Array(take(12 * faces));
      const { name } = this.structures[place - 1];
      const color = this._surfaceColor(place);
      const mesh = new niivue.NVMesh(vertices, triangles, name, color, 1, true, nv.gl);
      mesh.place = place;
      mesh.box = boxAround(vertices);
      meshes.push(mesh);
    }
    // Opaque meshes come first, because they are visible through the meshes that enclose
    // them.
    nv.meshes = meshes.sort((a, b) => a.box - b.box);
    this._solidLook();
    nv.updateGLVolume();
    nv.scene.crosshairPos = nv.mm2frac(this.at());
    nv.drawScene();
  }

  // Color the surfaces: `colorOf` returns [red, green, blue] by name, null keeps the usual ones.
  colorSurfaces(colorOf) {
    if (this.colorOf === colorOf) return;
    this.colorOf = colorOf;
    if (!this.solid) return;
    for (const mesh of this.solid.meshes) {
      mesh.rgba255 = this._surfaceColor(mesh.place);
      mesh.updateMesh(this.solid.gl);
    }
    this.solid.drawScene();
  }

  _surfaceColor(place) {
    const own = this.colors[place - 1];
    const color = this.colorOf?.(this.structures[place - 1].name) ?? own;
    return new Uint8Array([...color, 255]);
  }

  _solidLook() {
    if (!this.solid) return;
    for (const mesh of this.solid.meshes) {
      let faint = mesh.box > LARGE_BOX;
      if (this.selected) faint = mesh.place !== this.selected;
      mesh.visible = !this.hidden.has(mesh.place);
      mesh.opacity = faint ? 0.1 : 1;
    }
    this.solid.drawScene();
  }

  clearSurfaces() {
    const { solid } = this;
    if (!solid) return;
    // NiiVue's removeMesh would draw all that is left anew for each that goes.
    for (const mesh of solid.meshes) mesh.unloadMesh(solid.gl);
    solid.meshes = [];
    solid.drawScene();
  }
}

/** The volume of the box around points (x, y, z, x, ...), in mm³. */
function boxAround(points) {
  let volume = 1;
  for (const axis of [0, 1, 2]) {
    let least = Infinity;
    let most = -Infinity;
    for (let at = axis; at < points.length; at += 3) {
      least = Math.min(least, points[at]);
      most = Math.max(most, points[at]);
    }
    volume *= most - least;
  }
  return volume;
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
