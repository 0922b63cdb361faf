// Answers the page's questions from this machine's memory, as `trinat serve` does over HTTP.
// Nothing is sent anywhere. The addresses are those of pipelines/view/viewer.py and service.py.
import { inverse, moved, roundHalfToEven } from "./grid.js";
import { shownFile, thinned } from "./show.js";

/** @typedef {import("./model.js").Settings} Settings */

// Names of the stages on the page.
const STAGES = {
  conform: "reading",
  localisation: "networks",
  coronal: "networks",
  axial: "networks",
  sagittal: "networks",
  fusion: "writing",
  prior: "writing",
  restore: "writing",
  grade: "writing",
};

// Share of the time from the first view to the result that the views take.
const VIEWS_SHARE = 0.83;
// From this share of that time on, the pace of the slices tells how long the rest takes.
const KNOWN_SHARE = 0.08;
const MOST_GROWTH = 1.25;

export class Site {
  /**
   * @param {Settings[]} models of the same structures; the first one is chosen
   * @param {string} [device] where networks run: "cpu", "webgpu", or what is better
   */
  constructor(models, device = "") {
    this.models = models;
    this.device = device;
    // The one for scans that are dropped, and the one that the worker has.
    [this.chosen] = models;
    this.loaded = null;
    // The last one first.
    this.jobs = [];
    this.accepted = 0;
    // The scan that the worker is at.
    this.current = null;
    // Number of threads once the worker is ready, and whether networks run on the graphics
    // card.
    this.threads = 0;
    this.isOnGraphics = false;
    // Is called when a scan can be seen, and when it has ended: earlier than the page asks.
    this.changed = () => {};
    // Is called when a model is loaded.
    this.ready = () => {};
    this.start(this.chosen);
  }

  /** Take another model for the scans that are dropped from now on. */
  choose(name) {
    this.chosen = this.models.find(({ model }) => model === name);
    if (!this.current) this.start(this.chosen);
  }

  /**
   * In place of what `fetch` resolves to, for the paths that the page asks.
   * @param {string} path
   * @param {any} options those of `fetch`
   * @returns {Response}
   */
  ask(path, options = {}) {
    const url = new URL(path, "https://site.invalid/");
    const parts = url.pathname.split("/").slice(2);
    const { method = "GET" } = options;
    const [what, which, kind] = parts;
    if (what === "study") return json(this.overview());
    if (what === "segmentations" && method === "POST") {
      return json(this.accept(options.body.getAll("file")));
    }
    if (what === "segmentations" && method === "DELETE") {
      this.remove(which);
      return new Response(null, { status: 204 });
    }
    const job = this.jobs.find(({ number }) => number === Number(which));
    if (!job) return refusal("no such scan: it was deleted");
    if (!kind) return json(detailOf(job));
    if (kind === "value") {
      return json({ value: valueAt(job, url.searchParams.get("mm")) });
    }
    return contentOf(job, kind, Number(url.searchParams.get("step") || 1));
  }

  // ---- Scans ----

  /** @param {File[]} files of one scan */
  accept(files) {
    this.accepted += 1;
    const job = {
      id: String(this.accepted),
      number: this.accepted,
      name: files.length > 1 ? `${files.length} DICOM files` : files[0].name,
      files,
      settings: this.chosen,
      state: "queued",
      stage: "",
      reason: "",
      // When it began and when its networks did, in ms; which share of the time since then was
      // over when the last slices were ready, and when that was, in ms.
      began: 0,
      since: 0,
      share: 0,
      at: 0,
      leastLeft: Infinity,
      scan: null,
      values: null,
      labels: null,
      mask: null,
      surfaces: null,
      result: {},
      links: [],
    };
    this.jobs.unshift(job);
    this.next();
    return { id: job.id, name: job.name };
  }

  remove(id) {
    const job = this.jobs.find((each) => each.id === id);
    if (!job) return;
    for (const { href } of job.links) URL.revokeObjectURL(href);
    this.jobs = this.jobs.filter((each) => each !== job);
    if (job === this.current) this.worker.postMessage({ kind: "cancel" });
  }

  // ---- The worker ----

  // A worker with a model, which it loads; one with another model is ended.
  start(settings) {
    if (this.worker && this.loaded === settings) return;
    this.worker?.terminate();
    this.loaded = settings;
    this.threads = 0;
    const at = new URL("worker.js", import.meta.url);
    at.searchParams.set("model", settings.model);
    if (this.device) at.searchParams.set("device", this.device);
    this.worker = new Worker(at, { type: "module" });
    this.worker.addEventListener("message", ({ data }) => this.hear(data));
    this.worker.addEventListener("error", (event) => {
      this.worker.terminate();
      this.worker = null;
      this.hear({ kind: "failed", reason: event.message || "the worker ended" });
    });
  }

  next() {
    const job = this.jobs.findLast(({ state }) => state === "queued");
    if (this.current || !job) return;
    // The worker may have ended with the scan before, or have another model.
    this.start(job.settings);
    this.current = job;
    job.began = performance.now();
    job.state = "running";
    job.stage = "reading";
    const anyContrast = job.settings.contrast === "any";
    this.worker.postMessage({ files: job.files, anyContrast });
  }

  hear(said) {
    const job = this.current;
    if (said.kind === "ready") {
      this.threads = said.threads;
      this.isOnGraphics = said.isOnGraphics;
      this.ready();
    } else if (!job) {
      return;
    } else if (said.kind === "shown") {
      job.scan = said.scan;
      job.values = said.values;
      this.changed();
    } else if (said.kind === "stage") {
      this.follow(job, said);
    } else {
      job.state = said.kind;
      if (said.kind === "failed") job.reason = said.reason;
      else this.keep(job, said);
      this.current = null;
      this.next();
      this.changed();
    }
  }

  // The views take most of the time, and one as long as another.
  follow(job, { stage, share }) {
    job.stage = STAGES[stage];
    const names = job.settings.views.map((view) => view.name);
    const done = names.indexOf(stage);
    if (done < 0) return;
    if (!job.since) job.since = performance.now();
    job.share = VIEWS_SHARE * (done + share) / names.length;
    job.at = performance.now();
  }

  keep(job, { shown, outline, surfaces, files, result }) {
    job.surfaces = surfaces;
    job.labels = { ...job.scan, data: shown };
    job.mask = { ...job.scan, data: outline };
    job.result = result;
    job.links = Object.entries(files).map(([name, content]) => ({
      name,
      href: URL.createObjectURL(content),
    }));
  }

  // ---- What the page asks ----

  overview() {
    const waiting = this.jobs.filter(({ state }) => state === "queued").reverse();
    return {
      title: "Scans on this machine",
      service: true,
      grades: ["reject", "look", "pass"],
      verdicts: [],
      rater: "",
      raters: 0,
      against: "",
      layers: {},
      structures: this.chosen.classes.slice(1).map((each) => ({
        ...each,
        ...studyOf(this.jobs, each.name),
      })),
      scans: this.jobs.map((job) => ({
        ...factsOf(job),
        place: 1 + waiting.indexOf(job),
      })),
    };
  }
}

// The volumes of a structure in the scans that are done.
function studyOf(jobs, name) {
  const volumes = [];
  for (const { result } of jobs) {
    if (result.grade === "reject") continue;
    const volume = result.volumes_mm3?.[name];
    if (volume && result.structure_grades[name] !== "reject") volumes.push(volume);
  }
  volumes.sort((one, other) => one - other);
  return { count: volumes.length, volumes };
}

function factsOf(job) {
  const isDone = job.state === "done";
  return {
    id: job.id,
    number: job.number,
    name: job.name,
    state: job.state,
    stage: job.stage,
    seconds: Math.round((performance.now() - job.began) / 1000),
    seconds_left: secondsLeft(job),
    scan: Boolean(job.scan),
    grade: isDone ? job.result.grade : job.state,
    why: isDone ? job.result.reasons.join("; ") : job.reason,
    agreement: job.result.mean_agreement ?? null,
    there: isDone,
    rating: null,
    outputs: [],
    links: job.links,
  };
}

/**
 * Return how many seconds a scan still needs, by the pace of its slices; null while too few are
 * done, and when the time is up. A figure is at most a quarter larger than the smallest one
 * before: people plan by it.
 * @param {{ since: number, share: number, at: number, leastLeft: number }} job
 */
export function secondsLeft(job, now = performance.now()) {
  if (job.share < KNOWN_SHARE) return null;
  const whole = (job.at - job.since) / job.share;
  const expected = Math.round((job.since + whole - now) / 1000);
  if (expected < 1) return null;
  const left = Math.min(expected, Math.floor(job.leastLeft * MOST_GROWTH));
  job.leastLeft = Math.min(job.leastLeft, left);
  return left;
}

function detailOf(job) {
  const { result } = job;
  const grades = result.structure_grades ?? {};
  return {
    ...factsOf(job),
    result,
    sha256: "",
    entropy: false,
    mask: Boolean(job.mask),
    against: false,
    ratings: [],
    counted: Object.keys(grades).filter((name) =>
      result.grade !== "reject" && grades[name] !== "reject"
    ),
  };
}

function contentOf(job, kind, step) {
  if (kind === "surfaces" && job.surfaces) return new Response(job.surfaces);
  if (["scan", "mask"].includes(kind) && job[kind]) {
    return new Response(shownFile(job[kind], step));
  }
  if (kind === "labels" && job.labels) {
    return new Response(step > 1 ? thinned(job.labels, step).data : job.labels.data);
  }
  return refusal(`has no ${kind}`);
}

// The scan's own value at a place in mm; null outside of it.
function valueAt({ values }, words) {
  const [x, y, z] = words.split(",").map(Number);
  const voxel = moved([x, y, z], inverse(values.affine)).map(roundHalfToEven);
  if (voxel.some((at, axis) => at < 0 || at >= values.shape[axis])) return null;
  const [i, j, k] = voxel;
  return values.data[i + values.shape[0] * (j + values.shape[1] * k)];
}

const json = (content) => new Response(JSON.stringify(content));
const refusal = (reason) => new Response(JSON.stringify({ reason }), { status: 422 });
