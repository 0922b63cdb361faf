// What all parts of the page share: what is looked at, questions to the server, elements.

export const page = {
  // What the server says of the study, and of the scan that is looked at (null while unknown).
  study: null,
  /** @type {{ result: import("./record.d.ts").ScanResult, correction: any, [fact: string]: any } | null} */
  detail: null,
  // The scans of the list, those that are shown by their numbers, and the one that is looked at.
  items: [],
  order: [],
  number: -1,
  filter: "all",
  // Of scans that are proposed to be corrected next, their places among these, by name or id.
  proposed: new Map(),
  // What the shown map has: the study's structures or its parcels. Whether parcels are wanted.
  structures: [],
  parcels: false,
  // Whether surfaces of parcels are wanted in the colors of their thickness.
  thickness: false,
  // The place of the chosen structure among them, from 1; 0 for none.
  structure: 0,
  picture: null,
  // Whether the picture has all voxels of its scan, and how many each structure has.
  whole: false,
  counts: null,
  // Whether the labels are not those that the study's volumes are of.
  edited: false,
  // "entropy", "mask", or "" for none.
  overlay: "",
  // Grows with each scan that is opened: an answer for an earlier one is not wanted any more.
  turn: 0,
  asking: new AbortController(),
  // The files in what was dropped, and of which of them each scan is: to a server, one.
  filesIn: (transfer) => Promise.resolve([...transfer.files]),
  scansOf: (files) => files.map((file) => [file]),
  // Asks a service for its scans at once, not only when it is time.
  refresh: () => {},
};

/** @returns {any} an element of any kind, by its id */
export function byId(id) {
  return document.getElementById(id);
}

// ---- Asking ----

// Who answers: the server, or the page itself (browser/site.js).
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

// Of the scan that is looked at: given up when another one is opened.
export async function askBytes(path) {
  const answer = await ask(path, { signal: page.asking.signal });
  return answer.arrayBuffer();
}

export const pathOf = (item) => `v1/scans/${item.number}`;

// Whether a scan is shown with its parcels: where these are wanted, and there.
export const showsParcels = (item) => Boolean(page.parcels && item?.parcels);

// Where the labels of a scan are that are shown, and their surfaces.
export function pathsOfMap(item) {
  const path = pathOf(item);
  if (showsParcels(item)) {
    return { labels: `${path}/parcels`, surfaces: `${path}/parcel-surfaces` };
  }
  return { labels: `${path}/labels`, surfaces: `${path}/surfaces` };
}

// What was asked for the scan that is looked at is not wanted any more.
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
