// State, requests and elements shared by all parts of the page.

export const page = {
  // The server's data on the study, and on the open scan (null while unknown).
  study: null,
  /** @type {{ result: import("./record.d.ts").ScanResult, correction: any, [fact: string]: any } | null} */
  detail: null,
  // The scans of the list, those that are shown by their numbers, and the one that is looked at.
  items: [],
  order: [],
  number: -1,
  filter: "all",
  // Structures of the shown map: the study's structures or those of a layer.
  structures: [],
  // The requested layer, such as parcels; "" for the structures.
  layer: "",
  // True if surfaces of parcels are coloured by thickness.
  thickness: false,
  // The place of the chosen structure among them, from 1; 0 for none.
  structure: 0,
  picture: null,
  // True if the picture has all voxels of its scan; the number of voxels per structure.
  whole: false,
  counts: null,
  // True if the labels differ from those that the study's volumes were computed from.
  edited: false,
  // The structure that was rated last; "" for the scan.
  rated: "",
  // "entropy", "mask", or "" for none.
  overlay: "",
  // Grows with each scan that is opened: an answer for an earlier one is not wanted any more.
  turn: 0,
  asking: new AbortController(),
  // The files in what was dropped, and of which of them each scan is: to a server, one.
  filesIn: (transfer) => Promise.resolve([...transfer.files]),
  scansOf: (files) => Promise.resolve(files.map((file) => [file])),
  // Asks a service for its scans at once, not only when it is time.
  refresh: () => {},
};

/** @returns {any} an element of any kind, by its id */
export function byId(id) {
  return document.getElementById(id);
}

// ---- Asking ----

// Function that answers requests: the server, or the page itself (browser/site.js).
let answerer = async (path, options) => {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // The browser's own words for it are of no help.
    throw new Error("the server does not answer: is trinat still running?");
  }
};

export function answerBy(other) {
  answerer = other;
}

export async function ask(path, options) {
  const answer = await answerer(path, options);
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    const reason = said.reason || `the server answered ${answer.status}`;
    throw Object.assign(new Error(reason), { status: answer.status });
  }
  return answer;
}

export async function askJson(path, options) {
  const answer = await ask(path, options);
  return answer.json();
}

// Request data for the open scan; it is cancelled when another scan is opened.
export async function askBytes(path) {
  const answer = await ask(path, { signal: page.asking.signal });
  return answer.arrayBuffer();
}

export const pathOf = (item) => `v1/scans/${item.number}`;

// Return the layer that a scan is shown with: the requested one if the scan has it, else "".
export const layerOf = (item) => item?.layers?.includes(page.layer) ? page.layer : "";

// Return the layer whose correction is shown: "lesions", else "", that of the structures.
export const correctedLayerOf = (item) => layerOf(item) === "lesions" ? "lesions" : "";

// Return a path about a scan whose answer has its details, with the correction that is shown.
export function withLayer(item, path) {
  const layer = correctedLayerOf(item);
  return layer ? `${path}?layer=${layer}` : path;
}

// Return the paths of the shown labels of a scan and of their surfaces.
export function pathsOfMap(item) {
  const path = pathOf(item);
  const layer = layerOf(item);
  if (layer) {
    return { labels: `${path}/${layer}`, surfaces: `${path}/${layer}-surfaces` };
  }
  return { labels: `${path}/labels`, surfaces: `${path}/surfaces` };
}

// Cancel the pending requests for the open scan.
export function forgetScan() {
  page.turn += 1;
  page.asking.abort();
  page.asking = new AbortController();
}

export function unlessUnwanted(error) {
  if (error.name !== "AbortError") tell(error.message);
}

export function tell(text, { busy = false } = {}) {
  const message = byId("message");
  message.textContent = text;
  message.hidden = !text;
  message.classList.toggle("busy", busy);
}

// ---- What changes with the scan ----

const watchers = [];

// Call a function whenever something else is known of the scan that is looked at.
export function watchScan(fill) {
  watchers.push(fill);
}

export function scanChanged() {
  for (const fill of watchers) fill();
}

// ---- Building: text only ever by textContent ----

// An element; attributes that are null, undefined or false are left out.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(name, value);
    }
  }
  const there = children.filter((child) => child !== null && child !== undefined);
  element.append(...there);
  return element;
}

export function draw(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  return element;
}

export function badge(grade) {
  return make("span", { class: "badge", "data-grade": grade }, grade);
}

export function cellsOf(texts) {
  return texts.map((text) => make("td", {}, String(text)));
}

export function press(button, on) {
  button.setAttribute("aria-pressed", on);
}

// The words of a field for searching, in small letters.
export function wordsIn(field) {
  return field.value.toLowerCase().split(/\s+/).filter(Boolean);
}

// ---- Numbers and names ----

export const rounded = (number) => Math.round(number).toLocaleString("en");

const SIDES = [
  [/^Left-/, "L "],
  [/^Right-/, "R "],
  [/^ctx-lh-/, "L "],
  [/^ctx-rh-/, "R "],
];

// "L Thalamus" of "Left-Thalamus".
export function shortName(name) {
  let short = name;
  for (const [side, letter] of SIDES) short = short.replace(side, letter);
  return short.replaceAll("-", " ");
}
