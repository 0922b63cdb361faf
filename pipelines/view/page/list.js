// The list of scans: rows, filters, and which one comes next.
import { byId, make, page, press, wordsIn } from "./page.js";

const STAGES = { reading: "reading", networks: "segmenting", writing: "writing" };

export const listTab = {
  id: "scans",
  title: "Scans",
  column: "left",
  build: () => byId("scan-search").addEventListener("input", filterScans),
};

export function fillList() {
  page.items = page.study.scans;
  byId("scan-list").replaceChildren(...page.items.map(scanRow));
  const isEmpty = !page.items.length;
  document.body.classList.toggle("nothing", isEmpty);
  document.body.classList.toggle("welcome", isEmpty && Boolean(page.study.service));
  fillFilters();
  filterScans();
}

function scanRow(item, number) {
  const button = make("button", { class: "scan", "data-number": number });
  item.row = make("li", {}, button);
  fillScanRow(item);
  return item.row;
}

export function fillScanRow(item) {
  let why = item.why;
  if (!why && item.agreement) why = `views agree ${item.agreement.toFixed(2)}`;
  if (!why) why = item.state ? progressOf(item) : item.grade;
  item.row.firstChild.replaceChildren(
    make("span", { class: "dot", "data-grade": item.grade, title: item.grade }),
    make("span", { class: "name", title: item.name }, item.name),
    ratingOf(item),
    make("span", { class: "why soft", title: item.why || null }, why),
  );
}

// Describe the rater's verdict on a scan.
function ratingOf({ rating }) {
  if (!rating) return make("span");
  const facts = { class: "said", "data-grade": rating.rating, title: rating.remark };
  if (!rating.stale) return make("span", facts, rating.rating);
  facts.title = "Stale: the result has changed since";
  return make("span", facts, `${rating.rating}?`);
}

// Describe the progress of a scan in a service; "" once it has ended.
export function progressOf(item) {
  if (item.state === "queued") {
    return item.place > 1 ? `waiting, ${item.place - 1} before it` : "waiting";
  }
  if (item.state !== "running") return "";
  const stage = STAGES[item.stage] || item.stage;
  if (item.seconds_left === null) return `${stage}, ${item.seconds} s so far`;
  return `${stage}, about ${item.seconds_left} s left`;
}

// ---- Which scans are shown ----

function isShown(item, words) {
  const { filter } = page;
  if (filter === "unrated") {
    if (!item.there || item.rating) return false;
  } else if (filter !== "all" && item.grade !== filter) {
    return false;
  }
  const name = item.name.toLowerCase();
  return words.every((word) => name.includes(word));
}

function filterScans() {
  const words = wordsIn(byId("scan-search"));
  page.order = [];
  page.items.forEach((item, number) => {
    const shown = isShown(item, words);
    item.row.hidden = !shown;
    if (shown) page.order.push(number);
  });
  byId("scan-none").hidden = page.order.length > 0 || !page.items.length;
  pressFilter();
}

// A chip for each grade that there is, in the order in which scans are listed, and how far one is.
export function fillFilters() {
  const { items, study } = page;
  const counts = { all: items.length };
  const there = items.filter((item) => item.there);
  if (!study.service) counts.unrated = there.filter((item) => !item.rating).length;
  const grades = new Set([...study.grades, ...items.map((item) => item.grade)]);
  for (const grade of grades) {
    const found = items.filter((item) => item.grade === grade).length;
    if (found) counts[grade] = found;
  }
  byId("filters").replaceChildren(...Object.entries(counts).map(filterChip));
  pressFilter();

  let progress = "";
  if (items.length && study.service) {
    progress = `${there.length} of ${items.length} done`;
  } else if (items.length) {
    const rated = items.filter((item) => item.rating && !item.rating.stale);
    progress = `${rated.length} of ${there.length} rated by ${study.rater}`;
  }
  byId("progress").textContent = progress;
}

function filterChip([filter, found]) {
  const choose = () => {
    page.filter = filter;
    filterScans();
  };
  return make(
    "button",
    { class: "chip", "data-filter": filter, "data-grade": filter, onclick: choose },
    `${filter} `,
    make("b", {}, String(found)),
  );
}

function pressFilter() {
  for (const chip of byId("filters").children) {
    press(chip, chip.dataset.filter === page.filter);
  }
}

// The number of the scan that is so many rows further in the list; undefined of an empty list.
export function neighbour(by) {
  const at = page.order.indexOf(page.number);
  if (at < 0) return page.order[0];
  const last = page.order.length - 1;
  return page.order[Math.min(Math.max(at + by, 0), last)];
}

export function markRow(item) {
  for (const row of document.querySelectorAll(".scan[aria-current]")) {
    row.removeAttribute("aria-current");
  }
  item.row.firstChild.setAttribute("aria-current", "true");
}
