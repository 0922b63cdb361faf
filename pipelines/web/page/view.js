// The page of `trinat view`: the list of scans, the structures of one, and what is said of them.
import { Picture } from "./picture.js";

const $ = (id) => document.getElementById(id);
const VERDICT_KEYS = ["1", "2", "3"];
const LAYOUTS = { all: "All", axial: "A", coronal: "C", sagittal: "S", solid: "3D" };
const SIDES = [[/^Left-(.*)/, "L $1"], [/^Right-(.*)/, "R $1"]];
const FEWEST_FOR_PERCENTILES = 20;
const STAGES = { reading: "reading", networks: "segmenting", writing: "writing" };

const page = {
  study: null, items: [], order: [], number: -1, detail: null, filter: "all", loading: 0,
  structure: 0, picture: null, overlay: "", counts: null, asking: new AbortController(), whole: false,
};

// ---- Asking ----

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.reason || `the server answered ${answer.status}`);
  }
  return answer;
}

const askJson = async (path, options) => (await ask(path, options)).json();
const askBytes = async (path) => (await ask(path, { signal: page.asking.signal })).arrayBuffer();

function tell(text, { busy = false } = {}) {
  $("message").textContent = text;
  $("message").hidden = !text;
  $("message").classList.toggle("busy", busy);
}

// ---- Building: text only ever by textContent ----

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const badge = (grade, title) => make("span", { class: "badge", "data-grade": grade, title }, grade);
const whole = (number) => Math.round(number).toLocaleString("en");

function shortName(name) {
  for (const [pattern, to] of SIDES) if (pattern.test(name)) return name.replace(pattern, to).replaceAll("-", " ");
  return name.replaceAll("-", " ");
}

// ---- Scans ----

const pathOf = (item) => `v1/scans/${item.number}`;

function isShown(item) {
  const words = $("scan-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const { filter } = page;
  const fits = filter === "all" || (filter === "unrated" ? item.there && !item.rating : item.grade === filter);
  return fits && words.every((word) => item.name.toLowerCase().includes(word));
}

function scanRow(item, number) {
  const row = make("button", { class: "scan", "data-number": number, onclick: () => {
    document.body.dataset.tab = "picture";
    open(number);
  } });
  item.row = make("li", {}, row);
  fillScanRow(item);
  return item.row;
}

function fillScanRow(item) {
  const { rating } = item;
  const running = item.state ? progressOf(item) : item.grade;
  const said = rating && make("span", {
    class: "said", "data-grade": rating.rating, title: rating.stale ? "Stale: the result has changed since" : rating.remark,
  }, rating.stale ? `${rating.rating}?` : rating.rating);
  item.row.firstChild.replaceChildren(
    make("span", { class: "dot", "data-grade": item.grade, title: item.grade }),
    make("span", { class: "name", title: item.name }, item.name),
    said || make("span", {}),
    make("span", { class: "why soft", title: item.why || null }, item.why || (item.agreement ? `views agree ${item.agreement.toFixed(2)}` : running)),
  );
}

// Where a scan of a service is, in words; "" once it has ended.
function progressOf(item) {
  if (item.state === "queued") return item.place > 1 ? `waiting, ${item.place - 1} before it` : "waiting";
  if (item.state !== "running") return "";
  const stage = STAGES[item.stage] || item.stage;
  return item.seconds_left === null ? stage : `${stage}, about ${item.seconds_left} s left`;
}

function filterScans() {
  page.order = [];
  page.items.forEach((item, number) => {
    const shown = isShown(item);
    item.row.hidden = !shown;
    if (shown) page.order.push(number);
  });
  $("scan-none").hidden = page.order.length > 0 || !page.items.length;
  for (const chip of $("filters").children) chip.setAttribute("aria-pressed", chip.dataset.filter === page.filter);
}

function fillFilters() {
  const count = (test) => page.items.filter(test).length;
  const counts = { all: page.items.length, ...(page.study.service ? {} : { unrated: count((i) => i.there && !i.rating) }) };
  for (const grade of ["reject", "look", "pass", "queued", "running", "failed", "done", "skipped"]) {
    const found = count((i) => i.grade === grade);
    if (found) counts[grade] = found;
  }
  $("filters").replaceChildren(...Object.entries(counts).map(([filter, found]) =>
    make("button", { class: "chip", "data-filter": filter, "data-grade": filter, onclick: () => { page.filter = filter; filterScans(); } },
      `${filter} `, make("b", {}, String(found)))));
  const rated = count((i) => i.rating && !i.rating.stale);
  $("progress").textContent = !page.items.length ? "" : page.study.service ? `${count((i) => i.there)} of ${page.items.length} done` : `${rated} of ${count((i) => i.there)} rated by ${page.study.rater}`;
}

function go(by) {
  if (!page.order.length) return;
  const at = page.order.indexOf(page.number);
  const to = at < 0 ? 0 : Math.min(Math.max(at + by, 0), page.order.length - 1);
  if (page.order[to] !== page.number) open(page.order[to]);
}

// ---- One scan ----

// What was asked for the scan that is looked at is not wanted any more.
function forgetScan() {
  page.loading += 1;
  page.asking.abort();
  page.asking = new AbortController();
}

function unlessUnwanted(error) {
  if (error.name !== "AbortError") tell(error.message);
}

// Nothing of the scan before is left under the name of the next one, whatever becomes of that.
function clearScan() {
  page.detail = null;
  page.counts = null;
  page.whole = false;
  document.body.classList.add("empty");
  clearTimeout(page.valuing);
  $("here").textContent = "";
  page.picture?.clear();
  for (const id of ["entropy", "mask", "flip"]) $(id).disabled = true;
  $("judge").replaceChildren();
  fillStructures();
  fillCard();
}

async function open(number) {
  forgetScan();
  const turn = page.loading;
  const isOld = () => turn !== page.loading;
  page.number = number;
  const item = page.items[number];
  for (const row of document.querySelectorAll(".scan[aria-current]")) row.removeAttribute("aria-current");
  item.row.firstChild.setAttribute("aria-current", "true");
  item.row.scrollIntoView({ block: "nearest" });
  $("name").replaceChildren(item.name, " ", badge(item.grade));
  fillFiles(item);
  $("why").textContent = item.why;
  tell("", {});
  clearScan();
  const path = pathOf(item);
  try {
    const detailed = askJson(path);
    const coarse = item.there && Promise.all([askBytes(`${path}/scan?step=2`), askBytes(`${path}/labels?step=2`)]);
    coarse && coarse.catch(() => {});
    const starting = item.there && started();
    const detail = await detailed;
    if (isOld()) return;
    page.detail = detail;
    fillDetail();
    if (!item.there) {
      tell(item.why || progressOf(item) || "This scan has no result.");
      if (detail.scan) await showAlone(path, isOld);
      return;
    }
    tell("loading", { busy: true });
    const picture = await starting;
    const [scan, labels] = await coarse;
    if (isOld()) return;
    await picture.show(scan, new Uint8Array(labels), { keep: false });
    if (isOld()) return;
    document.body.classList.remove("empty");
    tell(detail.scan ? "" : page.study.service ? "A DICOM series is shown by its labels alone."
      : "The scan was not found: name its folder with --images");
    window.trinatShown = { number, step: 2, time: performance.now() };
    // Who pages through a study sees every scan at half its resolution, and one that stays at its own.
    await new Promise((done) => setTimeout(done, 250));
    if (isOld()) return;
    const [whole, all] = await Promise.all([askBytes(`${path}/scan`), askBytes(`${path}/labels`)]);
    if (isOld()) return;
    await picture.show(whole, new Uint8Array(all));
    if (isOld()) return;
    page.whole = true;
    picture.move(picture.at());
    page.counts = picture.counts();
    fillStructures();
    if (page.structure) picture.select(page.structure);
    if (page.overlay) await showOverlay(page.overlay);
    if (picture.state.flipped) await showOther(true);
    window.trinatShown = { number, step: 1, time: performance.now() };
    const surfaces = await askBytes(`${path}/surfaces`);
    if (isOld()) return;
    await picture.setSurfaces(surfaces);
    window.trinatShown = { number, step: 0, time: performance.now() };
  } catch (error) {
    if (!isOld()) tell(error.message);
  }
}

// A scan that has no labels yet.
async function showAlone(path, isOld) {
  const picture = await started();
  const scan = await askBytes(`${path}/scan`);
  if (isOld()) return;
  page.whole = true;
  await picture.showAlone(scan);
  if (isOld()) return;
  document.body.classList.remove("empty");
  window.trinatShown = { number: page.number, step: "scan", time: performance.now() };
}

async function started() {
  if (!page.picture) {
    const picture = new Picture($("planes"), $("solid"), page.study.structures, located);
    page.picture = window.trinatPicture = picture;
    picture.state.radiological = isRadiological();
    page.starting = picture.start();
  }
  await page.starting;
  return page.picture;
}

function fillDetail() {
  const { detail } = page;
  $("why").textContent = [detail.why, ...(detail.result.notes || [])].filter(Boolean).join("; ");
  for (const [id, there] of [["entropy", detail.entropy], ["mask", detail.mask], ["flip", detail.against]]) {
    $(id).disabled = !there;
    $(id).hidden = id === "flip" ? !page.study.against : !there && page.overlay !== id;
  }
  if (page.study.against) $("flip").textContent = page.study.against;
  fillStructures();
  if (!page.study.service) fillJudge($("judge"), "", "scan");
  fillCard();
}

function located({ place, mm, voxel, dims }) {
  // Without the sign of -0.
  const at = mm.map((v) => Math.round(v) || 0).join(", ");
  const parts = [place ? shortName(page.study.structures[place - 1].name) : "", `${at} mm`];
  if (page.whole && dims) parts.push(`slices ${voxel.map((n, axis) => `${n + 1}/${dims[axis]}`).join(", ")}`);
  if (page.picture.against && page.picture.state.flipped) parts.push(page.study.against);
  const line = parts.filter(Boolean).join(" · ");
  $("here").textContent = line;
  clearTimeout(page.valuing);
  if (page.detail?.scan) page.valuing = setTimeout(() => showValue(mm, line).catch(() => {}), 150);
}

// The scan's own value under the cross-hair, once it has come to rest.
async function showValue(mm, line) {
  const { value } = await askJson(`${pathOf(page.items[page.number])}/value?mm=${mm.join(",")}`, { signal: page.asking.signal });
  if ($("here").textContent !== line || value === null) return;
  $("here").textContent = `${line} · value ${Number(value.toPrecision(6)).toLocaleString("en")}`;
}

// ---- Sides ----

const isRadiological = () => localStorage.getItem("trinat-radiological") === "yes";

function tellSides() {
  const on = isRadiological();
  $("convention").textContent = on ? "Radiological: left on the right" : "Neurological: left on the left";
  $("convention").setAttribute("aria-pressed", on);
  $("sides").textContent = `In the axial and coronal plane the person's left is on the ${on ? "right" : "left"}.`;
}

function switchSides() {
  localStorage.setItem("trinat-radiological", isRadiological() ? "no" : "yes");
  tellSides();
  page.picture?.setRadiological(isRadiological());
}

async function savePicture() {
  if (!page.picture || document.body.classList.contains("empty")) return;
  const blob = await page.picture.snapshot($("stage").dataset.layout);
  const link = make("a", { href: URL.createObjectURL(blob), download: `${page.items[page.number].name.replaceAll("/", "_")}.png` });
  link.click();
  // Some browsers read it only after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// ---- Structures ----

// In mm³; null of a structure that the model does not predict, undefined while it is not known.
function volumeOf(structure, place) {
  const measured = page.detail?.result.volumes_mm3;
  if (measured) return measured[structure.name] ?? null;
  if (!page.counts) return undefined;
  return page.counts[place] * page.picture.voxelMm3();
}

// Share of the study's volumes that are smaller, in percent.
function percentile(structure, volume) {
  const below = structure.volumes.filter((v) => v < volume).length;
  const same = structure.volumes.filter((v) => v === volume).length;
  return (100 * (below + same / 2)) / structure.volumes.length;
}

// Of few scans a rank says more: 1 is the smallest.
function placeInStudy(structure, volume) {
  // A rejected volume is held against the others, and is none of them.
  if (page.detail && !page.detail.counted.includes(structure.name)) {
    return `rejected; ${structure.volumes.filter((v) => v < volume).length} of ${structure.count} others are smaller`;
  }
  if (structure.count >= FEWEST_FOR_PERCENTILES) return `percentile ${percentile(structure, volume).toFixed(0)} (${structure.count} scans)`;
  const below = structure.volumes.filter((v) => v < volume).length;
  return `rank ${below + 1} of ${structure.count}, 1 the smallest`;
}

function showVolumes() {
  const measured = page.study.structures.map((s, n) => [s, n + 1]).filter(([s]) => s.count);
  const rows = measured.map(([s, place]) => {
    const at = (share) => whole(s.volumes[Math.round(share * (s.volumes.length - 1))]);
    const own = volumeOf(s, place);
    const cells = [s.count, ...[0, 0.25, 0.5, 0.75, 1].map(at), own === undefined || own === null ? "" : whole(own)];
    return make("tr", {}, make("th", { scope: "row" }, shortName(s.name)), ...cells.map((text) => make("td", {}, String(text))));
  });
  $("volumes-rows").replaceChildren(...rows);
  $("volumes").showModal();
}

// The study's range with its middle half, and where this volume is.
function strip(structure, volume) {
  const values = structure.volumes;
  const svg = draw("svg", { viewBox: "0 0 60 12", class: "strip", "aria-hidden": "true" });
  if (values.length < 2 || volume === undefined || volume === null) return svg;
  const [low, high] = [Math.min(values[0], volume), Math.max(values[values.length - 1], volume)];
  const x = (v) => 2 + (56 * (v - low)) / (high - low || 1);
  const quartile = (share) => values[Math.round(share * (values.length - 1))];
  svg.append(
    draw("line", { x1: x(values[0]), x2: x(values[values.length - 1]), y1: 6, y2: 6, class: "range" }),
    draw("rect", { x: x(quartile(0.25)), width: Math.max(1, x(quartile(0.75)) - x(quartile(0.25))), y: 3.5, height: 5, rx: 1.5, class: "half" }),
    draw("line", { x1: x(volume), x2: x(volume), y1: 0.5, y2: 11.5, class: "mark" }),
  );
  return svg;
}

function structureRow(structure, n) {
  const place = n + 1;
  const swatch = make("button", {
    class: "swatch", "aria-pressed": "true", title: "Show or hide", "aria-label": `Show ${structure.name}`,
    onclick: () => toggleStructure(place),
  });
  swatch.style.setProperty("--color", structure.color);
  const body = make("button", { class: "structure", onclick: () => select(place) });
  structure.row = make("li", { "data-place": place }, swatch, body);
  return structure.row;
}

function fillStructures() {
  page.study.structures.forEach((structure, n) => {
    const volume = volumeOf(structure, n + 1);
    const grade = page.detail?.result.structure_grades?.[structure.name];
    const own = page.detail?.ratings.find((r) => r.mine && r.structure === structure.name);
    const agreement = page.detail?.result.agreement?.[structure.name];
    structure.row.classList.toggle("missing", !volume && volume !== undefined);
    const measured = volume === null ? [make("span", { class: "absent" }, "not predicted")]
      : volume === 0 ? [make("span", { class: "absent" }, "not found")]
        : [make("span", { class: "volume" }, volume === undefined ? "" : whole(volume)), strip(structure, volume)];
    structure.row.lastChild.replaceChildren(
      make("span", { class: "name", title: structure.name }, shortName(structure.name)),
      ...measured,
      make("span", { class: "agreement soft", title: "Agreement of views" }, agreement ? agreement.toFixed(2) : ""),
      make("span", { class: "dot", "data-grade": own ? own.rating : grade || "", "data-own": own ? true : null, title: own ? `you: ${own.rating}` : grade || "" }),
    );
  });
}

function searchStructures() {
  const words = $("structure-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const structure of page.study.structures) {
    const text = `${structure.name} ${shortName(structure.name)} ${structure.abbreviation}`.toLowerCase();
    structure.row.hidden = !words.every((word) => text.includes(word));
  }
}

const found = () => page.study.structures.map((s, n) => (s.row.hidden ? 0 : n + 1)).filter(Boolean);

function showHidden() {
  page.study.structures.forEach((s, n) =>
    s.row.firstChild.setAttribute("aria-pressed", !page.picture.hidden.has(n + 1)));
}

async function toggleStructure(place) {
  const picture = await started();
  picture.setHidden(place, !picture.hidden.has(place));
  showHidden();
}

async function select(place) {
  page.structure = place;
  for (const structure of page.study.structures) structure.row.classList.remove("chosen");
  if (place) page.study.structures[place - 1].row.classList.add("chosen");
  fillCard();
  const picture = page.picture;
  picture?.select(place);
  if (place && picture?.labels) picture.move(picture.centre(place));
}

function fillCard() {
  const card = $("structure-card");
  const structure = page.study.structures[page.structure - 1];
  card.hidden = !structure || !page.detail;
  if (card.hidden) return;
  const { result } = page.detail;
  const volume = volumeOf(structure, page.structure);
  const facts = [
    ["Volume", volume === null ? "not predicted by this model" : volume === undefined ? "" : `${whole(volume)} mm³`],
    ["Of brain", volume && result.total_brain_mm3 ? `${((100 * volume) / result.total_brain_mm3).toFixed(2)} %` : ""],
    ["In the study", Number.isFinite(volume) && structure.count > 1 ? placeInStudy(structure, volume) : ""],
    ["Views agree", result.agreement?.[structure.name]?.toFixed(3)],
    ["IoU of samples", result.iou?.[structure.name]?.toFixed(3)],
    ["Volume CV", result.volume_cv?.[structure.name]?.toFixed(3)],
    ["Grade", result.structure_grades?.[structure.name]],
  ].filter(([, value]) => value);
  const judge = make("div", { class: "judge" });
  card.replaceChildren(
    make("div", { class: "head" }, make("h3", {}, shortName(structure.name)),
      make("button", { class: "plain", title: "Close (Esc)", "aria-label": "Close", onclick: () => select(0) }, "×")),
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    judge,
  );
  if (!page.study.service) fillJudge(judge, structure.name, "structure");
}

// ---- Judging ----

function fillJudge(place, structure, what) {
  const { detail } = page;
  const own = detail.ratings.find((r) => r.mine && r.structure === structure);
  const others = detail.ratings.filter((r) => !r.mine && r.structure === structure);
  const prefix = structure ? "Shift+" : "";
  const buttons = page.study.verdicts.map((verdict, n) => make("button", {
    class: "verdict", "data-grade": verdict, "aria-pressed": String(own?.rating === verdict),
    disabled: !detail.sha256, title: `Rate the ${what}: ${prefix}${VERDICT_KEYS[n]}`,
    onclick: () => rate(structure, own?.rating === verdict ? "" : verdict),
  }, verdict));
  const remark = make("input", {
    type: "text", class: "remark", placeholder: "Remark", "aria-label": `Remark on the ${what}`, maxlength: 2000,
    disabled: !own, title: own ? null : "Rate first", onchange: () => rate(structure, own.rating, remark.value),
  });
  remark.value = own?.remark || "";
  const lines = others.map((r) => make("li", {}, make("span", { class: "dot", "data-grade": r.rating }),
    ` ${r.rater}: ${r.rating}${r.stale ? " (stale)" : ""}${r.remark ? ` – ${r.remark}` : ""}`));
  place.replaceChildren(...[
    make("div", { class: "segments" }, ...buttons), remark,
    own?.stale && make("p", { class: "stale" }, "Stale: the result has changed since you rated it."),
    lines.length && make("ul", { class: "others" }, ...lines),
  ].filter(Boolean));
}

async function rate(structure, rating, remark) {
  const { number, detail } = page;
  if (!detail?.sha256 || page.study.service) return;
  const own = detail.ratings.find((r) => r.mine && r.structure === structure);
  const body = JSON.stringify({ structure, rating, remark: remark ?? own?.remark ?? "", sha256: detail.sha256 });
  try {
    const saved = await askJson(`${pathOf(page.items[number])}/ratings`, { method: "PUT", body });
    // What is judged next is what is shown now, whatever the server has by then.
    saved.sha256 = detail.sha256;
    page.items[number].rating = saved.ratings.find((r) => r.mine && !r.structure) || null;
    fillScanRow(page.items[number]);
    fillFilters();
    filterChips();
    if (page.number === number) {
      page.detail = saved;
      fillDetail();
    }
  } catch (error) {
    tell(`not saved: ${error.message}`);
  }
}

// Rows stay in the list until the filter is chosen anew: what one has just judged does not vanish.
function filterChips() {
  for (const chip of $("filters").children) chip.setAttribute("aria-pressed", chip.dataset.filter === page.filter);
}

async function showRaters() {
  try {
    const rows = await askJson("v1/raters");
    $("raters-rows").replaceChildren(...rows.map((row) => make("tr", {}, ...[
      row.of, `${row.rater}, ${row.other_rater}`, row.rated_by_both, `${row.same_percent.toFixed(0)} %`,
      row.kappa === null ? "not defined" : row.kappa.toFixed(2),
    ].map((text) => make("td", {}, String(text))))));
    if (!rows.length) $("raters-rows").append(make("tr", {}, make("td", { colspan: 5 }, "No result was rated by two.")));
    $("raters").showModal();
  } catch (error) {
    tell(error.message);
  }
}

// ---- A service: scans are dropped, followed and deleted ----

const AT = "v1/segmentations";
const FILES = { "labels.nii.gz": "", "brainmask.nii.gz": "", "volumes.tsv": "", "qc.png": "", "labels.mgz": "mgz", "seg.dcm": "dicom-seg" };
// Names of files stay on this page: the server gets them to see the ending, and keeps none.
const sent = new Map();

function fillFiles(item) {
  $("files").hidden = !page.study.service;
  if (!page.study.service) return;
  const links = Object.entries(FILES).filter(([, asked]) => item.there && (!asked || item.outputs.includes(asked)))
    .map(([name]) => make("a", { href: `${AT}/${item.id}/${name}`, download: name }, name));
  $("files").replaceChildren(...links, make("button", { id: "delete", class: "chip", onclick: () => remove(item) }, "Delete"));
}

async function remove(item) {
  forgetScan();
  try {
    await ask(`${AT}/${item.id}`, { method: "DELETE" });
  } catch (error) {
    tell(error.message);
  }
  await refresh();
}

async function send(files) {
  $("refused").replaceChildren();
  for (const file of files) {
    const form = new FormData();
    form.append("file", file);
    for (const box of document.querySelectorAll(".output:checked")) form.append("outputs", box.value);
    const line = make("li", {}, `${file.name}: sending`);
    $("refused").append(line);
    try {
      const job = await askJson(AT, { method: "POST", body: form });
      sent.set(job.id, file.name);
      line.remove();
      document.body.dataset.tab = "picture";
      await refresh(job.id);
    } catch (error) {
      line.textContent = `${file.name}: ${error.message}`;
    }
  }
}

// The list as it is now. What is looked at stays, unless it has ended or is gone.
async function refresh(id) {
  const turn = page.refreshing = (page.refreshing || 0) + 1;
  const before = page.items[page.number];
  const study = await askJson("v1/study");
  if (turn !== page.refreshing) return;
  study.structures.forEach((s, n) => { s.row = page.study.structures[n].row; });
  page.study = study;
  fillScans();
  const at = page.items.findIndex((item) => item.id === (id || before?.id));
  page.number = at;
  if (at < 0) await openFirst();
  else if (id || hasEnded(before) !== hasEnded(page.items[at])) await open(at);
  else {
    page.items[at].row.firstChild.setAttribute("aria-current", "true");
    $("name").replaceChildren(page.items[at].name, " ", badge(page.items[at].grade));
    if (!hasEnded(page.items[at])) tell(progressOf(page.items[at]));
  }
  clearTimeout(page.timer);
  if (!page.items.every(hasEnded)) page.timer = setTimeout(() => refresh().catch(lost), 1000);
}

const hasEnded = (item) => ["done", "failed"].includes(item.state);

function lost() {
  tell("the server does not answer");
  page.timer = setTimeout(() => refresh().catch(lost), 5000);
}

function wireService() {
  const drop = $("drop");
  drop.hidden = false;
  $("judge").hidden = true;
  $("where").textContent = "Scans and results are deleted after a while.";
  $("file").addEventListener("change", (event) => { send([...event.target.files]); event.target.value = ""; });
  // On the whole page: a file that is dropped beside the field would be opened in place of the page.
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) document.body.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragenter" || name === "dragover");
  });
  document.body.addEventListener("drop", (event) => send([...event.dataTransfer.files]));
  refresh().catch(lost);
}

// ---- Controls ----

function press(id, on) {
  $(id).setAttribute("aria-pressed", on);
}

// One of entropy and mask at a time, or "" for none; a scan without it shows none.
async function showOverlay(kind) {
  page.overlay = kind && page.detail[kind] ? kind : "";
  for (const id of ["entropy", "mask"]) press(id, page.overlay === id);
  const bytes = page.overlay ? await askBytes(`${pathOf(page.items[page.number])}/${page.overlay}`) : null;
  await page.picture.setOverlay(bytes, page.overlay);
}

const toggleOverlay = (kind) => () => {
  if (page.detail?.[kind]) showOverlay(page.overlay === kind ? "" : kind).catch(unlessUnwanted);
};

async function showOther(on) {
  if (!page.detail?.against) return;
  press("flip", on);
  const bytes = on && !page.picture.against ? new Uint8Array(await askBytes(`${pathOf(page.items[page.number])}/against`)) : page.picture.against;
  page.picture.flip(on, bytes);
  page.picture.move(page.picture.at());
}

function setLayout(name) {
  $("stage").dataset.layout = name;
  for (const button of $("layouts").children) button.setAttribute("aria-pressed", button.dataset.layout === name);
  page.picture?.setLayout(name);
}

function setOpacity(value) {
  $("opacity").value = Math.min(1, Math.max(0, value));
  page.picture?.setOpacity(Number($("opacity").value));
}

let windowing = 0;
function setWindow() {
  cancelAnimationFrame(windowing);
  windowing = requestAnimationFrame(() => page.picture?.setWindow(Number($("low").value), Number($("high").value)));
}

const toggle = (id, key, set) => () => {
  const on = !page.picture.state[key];
  press(id, on);
  page.picture[set](on);
};

const toggleShown = toggle("shown", "shown", "setShown");
const toggleOutline = toggle("outline", "outline", "setOutline");

const KEYS = [
  ["N", "next scan", () => go(1)],
  ["B", "scan before", () => go(-1)],
  ["1", "pass", () => rate("", "pass")],
  ["2", "look", () => rate("", "look")],
  ["3", "reject (Shift: the chosen structure)", () => rate("", "reject")],
  ["M", "write a remark", () => document.querySelector(".remark:not(:disabled)")?.focus()],
  ["/", "find a structure", () => { document.body.dataset.tab = "structures"; $("structure-search").focus(); }],
  ["[", "labels fainter", () => setOpacity(Number($("opacity").value) - 0.1)],
  ["]", "labels stronger", () => setOpacity(Number($("opacity").value) + 0.1)],
  ["H", "show or hide labels", toggleShown],
  ["O", "outline or fill", toggleOutline],
  ["E", "entropy", toggleOverlay("entropy")],
  ["K", "outline of the brain mask", toggleOverlay("mask")],
  ["F", "other label map", () => page.detail?.against && showOther(!page.picture.state.flipped).catch(unlessUnwanted)],
  ["R", "the person's left on the other side", switchSides],
  ["P", "save what is seen as a picture", savePicture],
  ["V", "all views", () => setLayout("all")],
  ["A", "axial plane", () => setLayout("axial")],
  ["C", "coronal plane", () => setLayout("coronal")],
  ["S", "sagittal plane", () => setLayout("sagittal")],
  ["D", "surfaces", () => setLayout("solid")],
  ["← →", "cross-hair left, right", null],
  ["↑ ↓", "cross-hair to the front, back", null],
  ["PgUp PgDn", "cross-hair up, down", null],
  ["Esc", "leave a field, drop the chosen structure", null],
  ["?", "these keys", () => $("help").showModal()],
];
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 1], ArrowDown: [1, -1], PageUp: [2, 1], PageDown: [2, -1] };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const { target } = event;
  if (event.key === "Escape") {
    if (target.matches("input")) target.blur();
    else select(0);
    return;
  }
  const writes = target.matches("input[type=search], input[type=text]");
  if (writes || (target.matches("input") && event.key in ARROWS)) return;
  if (["ArrowUp", "ArrowDown"].includes(event.key) && target.closest("aside ol")) {
    moveInList(target, event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
    event.stopPropagation();
    return;
  }
  const digit = /^Digit([123])$/.exec(event.code);
  let act = null;
  if (digit && event.shiftKey) {
    const structure = page.study.structures[page.structure - 1];
    act = structure && (() => rate(structure.name, page.study.verdicts[digit[1] - 1]));
  } else if (event.key in ARROWS) act = () => page.picture?.step(...ARROWS[event.key]);
  else act = KEYS.find(([key]) => key === event.key.toUpperCase())?.[2];
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  if (page.picture || !["H", "O"].includes(event.key.toUpperCase())) act();
}

// From a row of a list to the next one that is shown.
function moveInList(target, by) {
  const row = target.closest("li");
  const rows = [...row.parentElement.children].filter((each) => !each.hidden);
  const next = rows[rows.indexOf(row) + by];
  next?.querySelector(".scan, .structure").focus();
}

function wire() {
  $("layouts").replaceChildren(...Object.entries(LAYOUTS).map(([name, text]) =>
    make("button", { "data-layout": name, "aria-pressed": String(name === "all"), title: name, onclick: () => setLayout(name) }, text)));
  const keys = KEYS.filter(([key]) => !page.study.service || !"123M".includes(key));
  $("keys").replaceChildren(...keys.flatMap(([key, text]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, text)]));
  for (const button of document.querySelectorAll("nav button")) {
    button.addEventListener("click", () => {
      document.body.dataset.tab = button.dataset.tab;
      page.picture?.resize();
    });
  }
  tellSides();
  $("convention").addEventListener("click", switchSides);
  $("shoot").addEventListener("click", () => savePicture().catch((error) => tell(error.message)));
  $("volumes-open").addEventListener("click", showVolumes);
  $("raters-open").hidden = page.study.raters < 2;
  $("raters-open").addEventListener("click", showRaters);
  $("help-open").addEventListener("click", () => $("help").showModal());
  $("previous").addEventListener("click", () => go(-1));
  $("next").addEventListener("click", () => go(1));
  $("scan-search").addEventListener("input", filterScans);
  $("structure-search").addEventListener("input", searchStructures);
  $("structure-search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && found().length) select(found()[0]);
  });
  $("all-shown").addEventListener("click", async () => { (await started()).showOnly(null); showHidden(); });
  $("only-found").addEventListener("click", async () => { (await started()).showOnly(new Set(found())); showHidden(); });
  $("opacity").addEventListener("input", () => setOpacity(Number($("opacity").value)));
  for (const id of ["low", "high"]) $(id).addEventListener("input", setWindow);
  $("shown").addEventListener("click", () => page.picture && toggleShown());
  $("outline").addEventListener("click", () => page.picture && toggleOutline());
  for (const kind of ["entropy", "mask"]) $(kind).addEventListener("click", toggleOverlay(kind));
  $("flip").addEventListener("click", () => showOther(!page.picture.state.flipped).catch(unlessUnwanted));
  // Before NiiVue, which has keys of its own.
  window.addEventListener("keydown", onKey, true);
}

function fillScans() {
  page.items = page.study.scans;
  if (page.study.service) for (const item of page.items) item.name = sent.get(item.id) || `Scan ${item.number}`;
  $("scan-list").replaceChildren(...page.items.map(scanRow));
  document.body.classList.toggle("nothing", !page.items.length);
  document.body.classList.toggle("welcome", Boolean(page.study.service) && !page.items.length);
  $("volumes-open").hidden = !page.study.structures.some((s) => s.count > 1);
  fillFilters();
  filterScans();
  fillStructures();
}

async function openFirst() {
  const first = page.items.findIndex((item) => item.there);
  if (page.items.length) return open(Math.max(first, 0));
  document.body.classList.add("empty");
  page.number = -1;
  page.detail = null;
  $("name").textContent = "";
  $("files").hidden = true;
  tell("No scans here: give the --out folder of trinat predict.");
}

async function main() {
  page.study = await askJson("v1/study");
  $("title").textContent = page.study.title;
  document.title = `${page.study.title} – trinat`;
  $("structure-list").replaceChildren(...page.study.structures.map(structureRow));
  fillScans();
  wire();
  if (page.study.service) {
    if (!page.items.length) document.body.dataset.tab = "scans";
    wireService();
  } else await openFirst();
}

main().catch((error) => tell(error.message));
