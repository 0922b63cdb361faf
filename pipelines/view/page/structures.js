// The structures of a scan: their volumes among those of the study, and the card of one.
import {
  byId,
  cellsOf,
  draw,
  layerOf,
  make,
  page,
  press,
  rounded,
  shortName,
  wordsIn,
} from "./page.js";
import { started } from "./controls.js";
import { fillJudge } from "./rating.js";

const FEWEST_FOR_PERCENTILES = 20;

export const structuresTab = {
  id: "structures",
  title: "Structures",
  column: "right",
  withPicture: true,
  build,
  fill,
};

function build() {
  fillList();
  const search = byId("structure-search");
  search.addEventListener("input", searchStructures);
  search.addEventListener("keydown", (event) => {
    const [first] = found();
    if (event.key === "Enter" && first) select(first);
  });
  byId("all-shown").addEventListener("click", () => showOnly(null));
  byId("only-found").addEventListener("click", () => showOnly(new Set(found())));
  byId("volumes-open").addEventListener("click", showVolumes);
}

function fillList() {
  byId("structure-list").replaceChildren(...page.structures.map(structureRow));
}

// List what the map of a scan has: a layer where it is wanted and there, else structures.
export function listMapOf(item) {
  const { structures, layers } = page.study;
  const layer = layerOf(item);
  const wanted = layer ? layers[layer] : structures;
  if (page.structures === wanted) return;
  const chosen = page.structures[page.structure - 1]?.name;
  page.structures = wanted;
  fillList();
  searchStructures();
  page.picture?.setStructures(wanted);
  // A structure that both have stays chosen.
  pickStructure(wanted.findIndex((structure) => structure.name === chosen) + 1);
}

// The detail that the card has been filled with.
let filled = null;

function fill() {
  fillRows();
  // A remark that is being written stays.
  if (page.detail && page.detail === filled) return;
  filled = page.detail;
  fillCard();
}

// ---- Volumes ----

// In mm³; null of a structure that the model does not predict, undefined while it is not known.
function volumeOf(structure, place) {
  const { result } = page.detail || {};
  const measured = result?.volumes_mm3 !== undefined;
  const volume = result?.volumes_mm3?.[structure.name] ?? parcelOf(structure)?.mm3 ??
    result?.callosum?.volumes_mm3?.[structure.name] ?? volumeOfLesions(structure);
  if (measured && !page.edited) return volume ?? null;
  if (!page.counts) return undefined;
  if (measured && !page.counts[place]) return volume === undefined ? null : 0;
  return page.counts[place] * page.picture.voxelMm3();
}

// Return the list of lesions of the scan for their structure; undefined for other structures.
function lesionsOf({ name }) {
  if (name !== "White-matter-lesions") return undefined;
  return page.detail?.result.lesions?.lesions;
}

function volumeOfLesions(structure) {
  return lesionsOf(structure)?.reduce((sum, { mm3 }) => sum + mm3, 0);
}

// Return the measurements of a parcel of the scan; undefined for other structures.
const parcelOf = ({ name }) => page.detail?.result.parcels?.[name];

const agreementOf = (structure) =>
  page.detail?.result.agreement?.[structure.name] ?? parcelOf(structure)?.agreement;

const gradeOf = (structure) =>
  page.detail?.result.structure_grades?.[structure.name] ?? parcelOf(structure)?.grade;

const isNumber = (volume) => volume !== undefined && volume !== null;

// Describe the position of a volume among those of the study.
function placeInStudy(structure, volume) {
  const { count, volumes } = structure;
  const found = volumes.filter((other) => other < volume).length;
  // Large studies send only some of the volumes, evenly spaced in their order.
  const isPart = volumes.length < count;
  const below = isPart
    ? `about ${Math.round((count * found) / volumes.length)}`
    : found;
  // A rejected volume is held against the others, and is none of them.
  if (page.detail && !page.detail.counted.includes(structure.name)) {
    return `rejected; ${below} of ${count} others are smaller`;
  }
  // A corrected volume is held against what was predicted, its own result among that.
  if (page.edited) return `corrected; ${below} of ${count} results are smaller`;
  // For few scans a rank says more than a percentile: 1 is the smallest.
  if (count < FEWEST_FOR_PERCENTILES) {
    return `rank ${found + 1} of ${count}, 1 the smallest`;
  }
  const same = volumes.filter((other) => other === volume).length;
  const percent = (100 * (found + same / 2)) / volumes.length;
  return `percentile ${percent.toFixed(0)} (${count} scans)`;
}

// The volume that a share of the study's volumes is below, or next to it.
function quantile(structure, share) {
  const { volumes } = structure;
  return volumes[Math.round(share * (volumes.length - 1))];
}

function showVolumes() {
  const rows = [];
  page.structures.forEach((structure, n) => {
    if (!structure.count) return;
    const name = make("th", { scope: "row" }, shortName(structure.name));
    const shares = [0, 0.25, 0.5, 0.75, 1];
    const volumes = shares.map((share) => rounded(quantile(structure, share)));
    const own = volumeOf(structure, n + 1);
    const cells = cellsOf([
      structure.count,
      ...volumes,
      isNumber(own) ? rounded(own) : "",
    ]);
    rows.push(make("tr", {}, name, ...cells));
  });
  byId("volumes-rows").replaceChildren(...rows);
  byId("volumes").showModal();
}

// The study's range with its middle half, and where this volume is.
function strip(structure, volume) {
  const { volumes } = structure;
  const svg = draw("svg", {
    viewBox: "0 0 60 12",
    class: "strip",
    "aria-hidden": "true",
  });
  if (volumes.length < 2 || !isNumber(volume)) return svg;
  const smallest = quantile(structure, 0);
  const largest = quantile(structure, 1);
  const low = Math.min(smallest, volume);
  const high = Math.max(largest, volume);
  const x = (value) => 2 + (56 * (value - low)) / (high - low || 1);
  const left = x(quantile(structure, 0.25));
  const right = x(quantile(structure, 0.75));
  svg.append(
    draw("line", { x1: x(smallest), x2: x(largest), y1: 6, y2: 6, class: "range" }),
    draw("rect", {
      x: left,
      width: Math.max(1, right - left),
      y: 3.5,
      height: 5,
      rx: 1.5,
      class: "half",
    }),
    draw("line", { x1: x(volume), x2: x(volume), y1: 0.5, y2: 11.5, class: "mark" }),
  );
  return svg;
}

// ---- The list ----

function structureRow(structure, n) {
  const place = n + 1;
  const swatch = make("button", {
    class: "swatch",
    "aria-pressed": "true",
    title: "Show or hide",
    "aria-label": `Show ${structure.name}`,
    onclick: () => toggle(place),
  });
  swatch.style.setProperty("--color", structure.color);
  const body = make("button", { class: "structure", onclick: () => select(place) });
  structure.row = make("li", { "data-place": place }, swatch, body);
  return structure.row;
}

export function fillRows() {
  const { structures } = page;
  byId("volumes-open").hidden = !structures.some((structure) => structure.count > 1);
  structures.forEach((structure, n) => {
    const volume = volumeOf(structure, n + 1);
    structure.row.classList.toggle("missing", volume === null || volume === 0);
    const agreement = agreementOf(structure);
    structure.row.lastChild.replaceChildren(
      make("span", { class: "name", title: structure.name }, shortName(structure.name)),
      ...volumeCells(structure, volume),
      make(
        "span",
        { class: "agreement soft", title: "Agreement of views" },
        agreement ? agreement.toFixed(2) : "",
      ),
      gradeDot(structure),
    );
  });
}

// After a stroke of the brush; what is being written in the card stays.
export function volumesChanged() {
  fillRows();
  if (!byId("structure-card").contains(document.activeElement)) fillCard();
}

function volumeCells(structure, volume) {
  if (volume === null) return [make("span", { class: "absent" }, "not predicted")];
  if (volume === 0) return [make("span", { class: "absent" }, "not found")];
  const text = volume === undefined ? "" : rounded(volume);
  return [make("span", { class: "volume" }, text), strip(structure, volume)];
}

// The grade of a structure, or what the rater has said of it.
function gradeDot(structure) {
  const ratings = page.detail?.ratings || [];
  const own = ratings.find((each) => each.mine && each.structure === structure.name);
  if (own) {
    return make("span", {
      class: "dot",
      "data-grade": own.rating,
      "data-own": true,
      title: `you: ${own.rating}`,
    });
  }
  const grade = gradeOf(structure) || "";
  return make("span", { class: "dot", "data-grade": grade, title: grade });
}

function searchStructures() {
  const words = wordsIn(byId("structure-search"));
  for (const structure of page.structures) {
    const { name, abbreviation, row } = structure;
    const text = `${name} ${shortName(name)} ${abbreviation}`.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
}

// The places of the structures that are listed.
function found() {
  const places = [];
  page.structures.forEach((structure, n) => {
    if (!structure.row.hidden) places.push(n + 1);
  });
  return places;
}

// ---- In the picture ----

function showHidden() {
  page.structures.forEach((structure, n) => {
    press(structure.row.firstChild, !page.picture.hidden.has(n + 1));
  });
}

async function toggle(place) {
  const picture = await started();
  picture.setHidden(place, !picture.hidden.has(place));
  showHidden();
}

async function showOnly(places) {
  const picture = await started();
  picture.showOnly(places);
  showHidden();
}

// Choose a structure, or none with 0: its card, and the cross-hair in it.
export function select(place) {
  pickStructure(place);
  const { picture } = page;
  if (place && picture?.labels) picture.move(picture.centre(place));
}

// Choose a structure, or none with 0, where the cross-hair stays.
export function pickStructure(place) {
  page.structure = place;
  if (place) byId("pen").value = place;
  for (const structure of page.structures) {
    structure.row.classList.remove("chosen");
  }
  if (place) page.structures[place - 1].row.classList.add("chosen");
  fillCard();
  page.picture?.select(place);
}

// ---- The card of the chosen one ----

function fillCard() {
  const card = byId("structure-card");
  const structure = page.structures[page.structure - 1];
  card.hidden = !structure || !page.detail;
  if (card.hidden) return;
  const facts = [];
  for (const [name, value] of factsOf(structure, page.structure)) {
    if (value) facts.push(make("dt", {}, name), make("dd", {}, value));
  }
  const close = make("button", {
    class: "plain",
    title: "Close (Esc)",
    "aria-label": "Close",
    onclick: () => select(0),
  }, "×");
  byId("structure-facts").replaceChildren(
    make("div", { class: "head" }, make("h3", {}, shortName(structure.name)), close),
    make("dl", {}, ...facts),
    lesionList(structure),
  );
  const judge = byId("structure-judge");
  if (isJudged(structure)) fillJudge(judge, structure.name, "structure");
  else judge.replaceChildren();
}

// A button for each lesion, the largest first, which moves the cross-hair to it.
function lesionList(structure) {
  const rows = (lesionsOf(structure) || []).map((lesion) => {
    const { x_mm, y_mm, z_mm, mm3, region } = lesion;
    const move = () => page.picture?.move([x_mm, y_mm, z_mm]);
    const text = `${lesion.lesion}: ${rounded(mm3)} mm³, ${region}`;
    return make("li", {}, make("button", { class: "chip", onclick: move }, text));
  });
  return make("ul", { class: "lesions", hidden: !rows.length }, ...rows);
}

// Return true if a structure can be rated; parcels cannot.
export function isJudged({ name }) {
  const { service, structures } = page.study;
  return !service && structures.some((structure) => structure.name === name);
}

// Names and values; a value that is not known is empty or undefined.
function factsOf(structure, place) {
  const { result } = page.detail;
  const { name } = structure;
  const volume = volumeOf(structure, place);
  let text = "";
  let share = "";
  let inStudy = "";
  if (volume === null) {
    text = "not predicted by this model";
  } else if (volume !== undefined) {
    text = `${rounded(volume)} mm³`;
    // The brain was measured before any correction of the structures.
    const isCorrected = page.edited && !lesionsOf(structure);
    const brain = isCorrected ? 0 : result.total_brain_mm3;
    if (volume && brain) share = `${((100 * volume) / brain).toFixed(2)} %`;
    if (structure.count > 1) inStudy = placeInStudy(structure, volume);
  }
  const parcel = parcelOf(structure);
  return [
    ["Volume", text],
    ["Of brain", share],
    ["Of its side's cortex", percentOf(parcel?.share)],
    ["Left minus right, relative to their mean", percentOf(parcel?.asymmetry)],
    ["Lobe", parcel?.lobe],
    ["Thickness", thicknessOf(structure)],
    ["In the study", inStudy],
    ["Views agree", agreementOf(structure)?.toFixed(3)],
    ["IoU of samples", result.iou?.[name]?.toFixed(3)],
    ["Volume CV", result.volume_cv?.[name]?.toFixed(3)],
    [lesionsTitle(structure, volume), lesionsOf(structure)?.length],
    ["Grade", lesionsOf(structure) ? result.lesions.grade : gradeOf(structure)],
  ];
}

// Lesions are counted by the server: the number is old until a correction is saved.
function lesionsTitle(structure, volume) {
  // Without counts there is no whole picture, and nothing is painted.
  if (!page.counts) return "Lesions";
  const offMm3 = Math.abs(volume - volumeOfLesions(structure));
  return offMm3 > page.picture.voxelMm3() / 2
    ? "Lesions before these changes"
    : "Lesions";
}

// Mean and standard deviation of a parcel's thickness; empty where it was not measured.
function thicknessOf({ name }) {
  const measured = page.detail?.result.thickness?.sheets?.[name];
  if (!isNumber(measured?.mm)) return "";
  return `${measured.mm.toFixed(2)} mm (SD ${measured.std_mm.toFixed(2)})`;
}

const percentOf = (share) => isNumber(share) ? `${(100 * share).toFixed(1)} %` : "";
