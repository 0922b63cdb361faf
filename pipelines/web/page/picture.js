// The picture: three planes and a solid view on two canvases, by NiiVue.
/* global niivue */

const GREY = [0.42, 0.72, 0.98, 0.9];
const COMMON = {
  logLevel: "error", backColor: [0, 0, 0, 1], crosshairColor: GREY, dragAndDropEnabled: false,
  isColorbar: false, viewModeHotKey: "", clipPlaneHotKey: "", cycleClipPlaneHotKey: "",
  fontColor: [0.62, 0.67, 0.73, 1], showAllOrientationMarkers: true,
};
// Colours, opacity, and the values that are shown as the first and the last of them.
const OVERLAYS = { entropy: ["inferno", 0.75, null, 15, 255], mask: ["green", 1, null, 60, 160] };
const PLANES = { axial: 0, coronal: 1, sagittal: 2 };
const QUARTERS = [
  { sliceType: 0, position: [0, 0, 0.5, 0.5] },
  { sliceType: 1, position: [0.5, 0, 0.5, 0.5] },
  { sliceType: 2, position: [0, 0.5, 0.5, 0.5] },
];

export class Picture {
  constructor(canvas, solidCanvas, structures, moved) {
    Object.assign(this, { canvas, solidCanvas, structures, moved });
    this.hidden = new Set();
    this.colors = structures.map((s) => rgb(s.color));
    this.selected = 0;
    // What was begun before the last clear() is not shown after it.
    this.turn = 0;
    this.labels = this.against = this.solid = null;
    this.opacity = 0.5;
    this.state = { outline: false, shown: true, flipped: false, window: [0, 255], radiological: false };
  }

  async start() {
    this.nv = new niivue.Niivue({
      ...COMMON, crosshairGap: 12, crosshairWidth: 0.6, crosshairWidthUnit: "mm", multiplanarShowRender: 0, dragMode: 3,
      isRadiologicalConvention: this.state.radiological,
    });
    await this.nv.attachToCanvas(this.canvas);
    // Gradients serve NiiVue's volume rendering, which is not used here, and cost most of the time
    // that a scan takes to appear without a graphics card: their passes copy instead.
    this.nv.blurShader = this.nv.sobelFirstOrderShader = this.nv.passThroughShader;
    this.nv.setCustomLayout(QUARTERS);
    this.nv.onLocationChange = (at) => this._moved(at);
    this.nv.drawOpacity = this.opacity;
    this._colour();
  }

  // The scan (NIfTI) and its labels (a byte a voxel), whose cross-hair stays where it is.
  async show(scan, labels, { keep = true } = {}) {
    const nv = this.nv;
    const { turn } = this;
    const at = keep && nv.volumes.length ? this.at() : null;
    const image = await niivue.NVImage.new(scan, "scan.nii", "gray", 1, null, ...this.state.window);
    if (turn !== this.turn) return;
    const overlay = nv.volumes[1];
    nv.volumes = [];
    nv.drawBitmap = null;
    nv.addVolume(image);
    if (overlay) nv.addVolume(overlay);
    this.labels = labels;
    this.against = null;
    this.dims = image.dimsRAS.slice(1, 4);
    this.drawn = labels;
    this._redraw();
    this.move(at || this.centre(0));
  }

  // Black, without a scan, labels, overlay or surfaces.
  clear() {
    const nv = this.nv;
    this.turn += 1;
    this.labels = this.drawn = this.against = this.dims = null;
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
    const nv = this.nv;
    const bitmap = this.state.flipped && this.against ? this.against : this.labels;
    if (!bitmap?.length || !nv.volumes.length) return;
    nv.drawTexture = nv.r8Tex(nv.drawTexture, nv.gl.TEXTURE7, nv.back.dims, true);
    nv.drawBitmap = bitmap;
    this._look();
    nv.refreshDrawing(true);
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
    const nv = this.nv;
    const { outline, shown } = this.state;
    const opacity = shown ? this.opacity : 0;
    // With an outline the rest must not be wholly transparent, or NiiVue draws no rim either.
    nv.drawOpacity = outline && opacity ? 0.004 : opacity;
    nv.drawRimOpacity = outline && opacity ? 0.35 + 0.65 * opacity : -1;
  }

  // Radiological: the person's left is on the right of the picture.
  setRadiological(on) {
    this.state.radiological = on;
    this.nv.setRadiologicalConvention(on);
    this.nv.drawScene();
  }

  // What is seen on both canvases, as one.
  snapshot(layout) {
    const shot = document.createElement("canvas");
    [shot.width, shot.height] = [this.canvas.width, this.canvas.height];
    const pen = shot.getContext("2d");
    // Each canvas is copied in the turn in which it was drawn: later it is empty.
    if (layout !== "solid") {
      this.nv.drawScene();
      pen.drawImage(this.canvas, 0, 0);
    }
    if (this.solid && (layout === "all" || layout === "solid")) {
      this.solid.drawScene();
      const part = layout === "all" ? 2 : 1;
      const [x, y] = [shot.width - shot.width / part, shot.height - shot.height / part];
      pen.drawImage(this.solidCanvas, x, y, shot.width / part, shot.height / part);
    }
    return new Promise((done) => shot.toBlob(done, "image/png"));
  }

  setWindow(low, high) {
    this.state.window = [low, high];
    const volume = this.nv.volumes[0];
    if (!volume) return;
    [volume.cal_min, volume.cal_max] = [low, Math.max(high, low + 1)];
    this.nv.updateGLVolume();
  }

  // What lies over the scan: entropy, the outline of the mask, or (without bytes) nothing.
  async setOverlay(bytes, kind) {
    const nv = this.nv;
    if (nv.volumes[1]) nv.removeVolume(nv.volumes[1]);
    if (!bytes) return;
    const { turn } = this;
    const image = await niivue.NVImage.new(bytes, `${kind}.nii`, ...OVERLAYS[kind]);
    if (turn === this.turn) nv.addVolume(image);
  }

  setHidden(place, hide) {
    this.hidden[hide ? "add" : "delete"](place);
    this._recolour();
  }

  showOnly(places) {
    this.hidden = new Set(places ? this.structures.map((_, n) => n + 1).filter((p) => !places.has(p)) : []);
    this._recolour();
  }

  select(place) {
    this.selected = place;
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
    this.colors.forEach((color, n) => lut.set([...color, this.hidden.has(n + 1) ? 0 : 255], 4 * (n + 1)));
    this.nv.drawLut = { lut, labels: ["", ...this.structures.map((s) => s.name), ...Array(256).fill("")] };
  }

  setLayout(name) {
    const nv = this.nv;
    if (name === "all") nv.setCustomLayout(QUARTERS);
    else if (name in PLANES) {
      nv.clearCustomLayout();
      nv.setSliceType(PLANES[name]);
    }
    this.resize();
  }

  resize() {
    this.nv.resizeListener();
    this.solid?.resizeListener();
  }

  at() {
    return Array.from(this.nv.frac2mm(this.nv.scene.crosshairPos)).slice(0, 3);
  }

  move(mm) {
    if (!mm || !this.nv.volumes.length) return;
    this.nv.scene.crosshairPos = this.nv.mm2frac(mm);
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  step(axis, by) {
    const mm = this.at();
    mm[axis] += by;
    this.move(mm);
  }

  // The voxel of a structure (0: of any) that is nearest to its centre of gravity, in mm.
  centre(place) {
    const [X, Y] = this.dims;
    const labels = this.labels;
    let n = 0, x = 0, y = 0, z = 0;
    const visit = (each) => {
      for (let i = 0; i < labels.length; i++) {
        if (place ? labels[i] === place : labels[i]) each(i % X, Math.floor(i / X) % Y, Math.floor(i / (X * Y)));
      }
    };
    visit((a, b, c) => { n++; x += a; y += b; z += c; });
    if (!n) return null;
    [x, y, z] = [x / n, y / n, z / n];
    let best = Infinity, found = [x, y, z];
    visit((a, b, c) => {
      const d = (a - x) ** 2 + (b - y) ** 2 + (c - z) ** 2;
      if (d < best) { best = d; found = [a, b, c]; }
    });
    return Array.from(this.nv.vox2mm(found, this.nv.volumes[0].matRAS)).slice(0, 3);
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
    const place = bitmap ? bitmap[i + X * (j + Y * k)] : 0;
    const mm = Array.from(at.mm).slice(0, 3);
    if (this.solid?.meshes.length) {
      this.solid.scene.crosshairPos = this.solid.mm2frac(mm);
      this.solid.drawScene();
    }
    this.moved({ place, mm, voxel: Array.from(at.vox).slice(0, 3), dims: this.dims });
  }

  async setSurfaces(buffer) {
    const { turn } = this;
    if (!this.solid) {
      this.solid = new niivue.Niivue({
        ...COMMON, show3Dcrosshair: true, crosshairWidth: 1, crosshairWidthUnit: "mm", sliceType: 4, isOrientCube: true,
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
    const view = new DataView(buffer);
    for (let at = 0; at < buffer.byteLength;) {
      const [place, points, faces] = [0, 4, 8].map((by) => view.getUint32(at + by, true));
      const vertices = new Float32Array(buffer.slice(at + 12, at + 12 + 12 * points));
      at += 12 + 12 * points;
      const triangles = new Uint32Array(buffer.slice(at, at + 12 * faces));
      at += 12 * faces;
      const color = new Uint8Array([...this.colors[place - 1], 255]);
      const mesh = new niivue.NVMesh(vertices, triangles, this.structures[place - 1].name, color, 1, true, nv.gl);
      mesh.place = place;
      mesh.size = points;
      meshes.push(mesh);
    }
    // What is opaque comes first: it is seen through what encloses it.
    nv.meshes = meshes.sort((a, b) => a.size - b.size);
    this._solidLook();
    nv.updateGLVolume();
    nv.scene.crosshairPos = nv.mm2frac(this.at());
    nv.drawScene();
  }

  _solidLook() {
    if (!this.solid) return;
    for (const mesh of this.solid.meshes) {
      const faint = this.selected ? mesh.place !== this.selected : mesh.size > 12000;
      mesh.visible = !this.hidden.has(mesh.place);
      mesh.opacity = faint ? 0.1 : 1;
    }
    this.solid.drawScene();
  }

  clearSurfaces() {
    if (!this.solid) return;
    for (const mesh of [...this.solid.meshes]) this.solid.removeMesh(mesh);
    this.solid.drawScene();
  }
}

export function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
