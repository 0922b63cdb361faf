// Correcting a result: the tools of the brush, drafts that outlive the tab, saving.
import {
  ask,
  askJson,
  byId,
  correctedLayerOf,
  layerOf,
  make,
  page,
  pathOf,
  pathsOfMap,
  press,
  scanChanged,
  shortName,
  tell,
  watchScan,
} from "./page.js";
import { ANYWHERE } from "./brush.js";
import { setLayout, showOther } from "./controls.js";
import { showRating } from "./rating.js";
import { pickStructure, volumesChanged } from "./structures.js";
import { open } from "./scan.js";

const TOOLS = {
  paint: { text: "Paint", key: "Q" },
  erase: { text: "Erase", key: "W" },
  fill: { text: "Fill", key: "L" },
  replace: { text: "Replace", key: "G" },
  move: { text: "Move", key: "Y" },
};
// A draft is sent when the brush has rested for so long, and again if that has failed.
const REST_MS = 600;
const AGAIN_MS = 5000;
// Longer pauses do not count as working time.
const IDLE_S = 60;
// The correction that goes on, or null: see `begin`.
let session = null;
// The number of a scan that was refused: its draft is put on what was saved meanwhile.
let rebasing = null;

export function startCorrecting() {
  byId("correct-open").hidden = !page.study.corrector;
  byId("correct-open").addEventListener("click", toggleCorrecting);
  for (const [name, { text, key }] of Object.entries(TOOLS)) {
    const facts = { "data-tool": name, title: key, onclick: () => setTool(name) };
    byId("tools").append(make("button", facts, text));
  }
  byId("pen").addEventListener(
    "change",
    () => pickStructure(Number(byId("pen").value)),
  );
  byId("within").addEventListener("change", updateBrush);
  byId("brush-size").addEventListener("input", updateBrush);
  byId("ball").addEventListener("click", toggleBall);
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  byId("save").addEventListener("click", save);
  byId("discard").addEventListener("click", discard);
  watchScan(follow);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") keepNow();
  });
}

// List the structures of the shown map, to paint with and to paint over.
function fillPens() {
  const options = page.structures.map((structure, n) =>
    make("option", { value: n + 1 }, shortName(structure.name))
  );
  byId("pen").replaceChildren(...options);
  byId("within").replaceChildren(
    make("option", { value: ANYWHERE }, "anything"),
    make("option", { value: 0 }, "background"),
    ...options.map((option) => option.cloneNode(true)),
  );
}

export const isCorrecting = () => session !== null && !byId("correct").hidden;

// Whenever something else is known of the scan: another scan ends a correction, a draft begins one.
function follow() {
  const { detail, whole } = page;
  const item = page.items[page.number];
  const hasBrush = layerOf(item) === correctedLayerOf(item);
  const canCorrect = whole && detail?.builds_on && page.study.corrector && hasBrush;
  byId("correct-open").disabled = !canCorrect;
  if (!detail) {
    finish();
    return;
  }
  if (detail.correction && hasBrush) page.edited = true;
  const hasDraft = detail.drafts?.length > 0;
  if (hasDraft && !session && !byId("correct-open").disabled) begin();
}

export function toggleCorrecting() {
  if (byId("correct-open").disabled) return;
  if (!session) begin();
  else showTools(byId("correct").hidden);
}

// Strokes stay in the picture, and continue when the tools are shown again.
function showTools(on) {
  byId("correct").hidden = !on;
  press(byId("correct-open"), on);
  if (on) setTool(page.picture.nv.brush.tool);
  else page.picture.setPainting(false);
  page.picture.resize();
}

async function begin() {
  const { detail, picture } = page;
  const { labels, dims } = picture;
  const item = page.items[page.number];
  session = {
    item,
    layer: correctedLayerOf(item),
    base: labels.slice(),
    // The map that the changes are relative to.
    buildsOn: detail.builds_on,
    // Name of the draft.
    tab: newTab(),
    // An earlier draft that is part of the changes.
    taken: null,
    minutes: 0,
    last: null,
    sending: 0,
    isKept: true,
  };
  const mine = session;
  if (picture.state.flipped) await showOther(false);
  if (byId("stage").dataset.layout === "solid") setLayout("all");
  if (session !== mine) return;
  fillPens();
  pickStructure(page.structure || picture.under() || 1);
  const { brush } = picture.nv;
  const [, x, y, z] = picture.nv.volumes[0].pixDimsRAS;
  brush.take(labels, dims, [x, y, z]);
  brush.changed = changed;
  if (brush.tool === "move") brush.tool = "paint";
  updateBrush();
  showTools(true);
  report();
  const isRebased = rebasing === page.number;
  rebasing = null;
  const [draft] = detail.drafts || [];
  if (!draft) return;
  try {
    await offer(draft, mine, isRebased);
  } catch (error) {
    say(error.message);
  }
}

// A draft of this map is gone on with; one of an earlier map is put on this one if one wants it.
async function offer(draft, mine, isRebased) {
  if (draft.builds_on === mine.buildsOn || isRebased) {
    await takeDraft(draft, mine);
    return;
  }
  const put = make("button", { class: "chip" }, "Put it on this map");
  put.addEventListener(
    "click",
    () => takeDraft(draft, mine).catch((error) => say(error.message)),
  );
  const drop = make("button", { class: "chip" }, "Drop it");
  drop.addEventListener("click", async () => {
    await dropDraft(draft, mine);
    say("");
  });
  say("Your draft belongs to an earlier label map of this scan.", put, drop);
}

async function takeDraft(draft, mine) {
  const answer = await ask(draftOf(mine, draft.tab));
  const content = await answer.arrayBuffer();
  if (session !== mine) return;
  const count = content.byteLength / 5;
  mine.taken = draft;
  mine.minutes += draft.minutes;
  page.picture.nv.brush.put(
    new Uint32Array(content, 0, count),
    new Uint8Array(content, 4 * count),
  );
  page.picture.nv.refreshDrawing(true);
}

// Delete a draft, unless the tab that keeps it has painted more since.
function dropDraft({ tab, at }, mine) {
  const path = `${draftOf(mine, tab)}&at=${encodeURIComponent(at)}`;
  return ask(path, { method: "DELETE" });
}

// An earlier draft goes once its strokes are kept elsewhere.
async function dropTaken(mine) {
  if (!mine.taken) return;
  await dropDraft(mine.taken, mine);
  mine.taken = null;
}

// The scan is left: what was painted stays as a draft.
function finish() {
  page.edited = false;
  if (!session) return;
  keepNow();
  session = null;
  showTools(false);
  say("");
  for (const id of ["undo", "redo", "save", "discard"]) byId(id).disabled = true;
}

// ---- The tools ----

export function setTool(name) {
  if (!session) return;
  for (const button of byId("tools").children) {
    press(button, button.dataset.tool === name);
  }
  page.picture.nv.brush.tool = name;
  page.picture.setPainting(name !== "move", name === "fill");
}

export function updateBrush() {
  if (!page.picture) return;
  const { brush } = page.picture.nv;
  brush.within = Number(byId("within").value);
  brush.sizeMm = Number(byId("brush-size").value);
  byId("brush-mm").textContent = `${brush.sizeMm} mm`;
}

export function resizeBrush(by) {
  byId("brush-size").value = Number(byId("brush-size").value) + by;
  updateBrush();
}

export function toggleBall() {
  if (!session) return;
  const { brush } = page.picture.nv;
  brush.solid = !brush.solid;
  press(byId("ball"), brush.solid);
}

// Paint with what is under the cross-hair.
export function pickUnderCrosshair() {
  const place = page.picture.under();
  if (place) pickStructure(place);
}

// Paint over what is under the cross-hair alone, or over anything.
export function toggleWithin() {
  const isFree = Number(byId("within").value) === ANYWHERE;
  byId("within").value = isFree ? page.picture.under() : ANYWHERE;
  updateBrush();
}

export function undo() {
  page.picture.nv.brush.undo();
  page.picture.nv.refreshDrawing(true);
}

export function redo() {
  page.picture.nv.brush.redo();
  page.picture.nv.refreshDrawing(true);
}

// ---- What has changed ----

// After each stroke, and when one was undone.
function changed() {
  const now = performance.now();
  const seconds = session.last === null ? 0 : (now - session.last) / 1000;
  session.last = now;
  if (seconds < IDLE_S) session.minutes += seconds / 60;
  session.isKept = false;
  clearTimeout(session.sending);
  session.sending = setTimeout(keepNow, REST_MS);
  recount();
  report();
}

function recount() {
  const isChanged = changesOf(session).indices.length > 0;
  page.edited = isChanged || Boolean(page.detail.correction);
  page.counts = page.picture.counts();
  volumesChanged();
}

// Return a new name for a draft.
const newTab = () =>
  [...crypto.getRandomValues(new Uint8Array(8))]
    .map((byte) => byte.toString(16).padStart(2, "0")).join("");

// Return the path of the draft of a tab.
const draftOf = ({ item, layer }, tab) =>
  `${pathOf(item)}/drafts/${tab}?layer=${layer}`;
const changesOf = ({ base }) => page.picture.nv.brush.changesFrom(base);

// Encode changes for the server, as pipelines/view/correcting.py reads them.
function packed({ indices, places }) {
  const bytes = new Uint8Array(5 * indices.length);
  bytes.set(new Uint8Array(indices.buffer));
  bytes.set(places, 4 * indices.length);
  return bytes;
}

function queryOf({ buildsOn, minutes, layer }) {
  const facts = { "builds_on": buildsOn, minutes: minutes.toFixed(2), layer };
  return new URLSearchParams(facts);
}

// Send the draft, unless the server has it.
async function keepNow() {
  const mine = session;
  if (!mine || mine.isKept) return;
  clearTimeout(mine.sending);
  mine.isKept = true;
  const changes = changesOf(mine);
  const path = `${pathOf(mine.item)}/drafts/${mine.tab}`;
  try {
    if (changes.indices.length) {
      const body = packed(changes);
      await ask(`${path}?${queryOf(mine)}`, { method: "PUT", body });
    } else {
      await ask(draftOf(mine, mine.tab), { method: "DELETE" });
    }
    await dropTaken(mine);
    if (session === mine) report();
  } catch (error) {
    mine.isKept = false;
    if (session !== mine) {
      tell(`The draft of ${mine.item.name} is not kept: ${error.message}`);
      return;
    }
    say(`The draft is not kept: ${error.message}`);
    mine.sending = setTimeout(keepNow, AGAIN_MS);
  }
}

function report() {
  const { indices } = changesOf(session);
  byId("undo").disabled = !page.picture.nv.brush.done.length;
  byId("redo").disabled = !page.picture.nv.brush.undone.length;
  byId("save").disabled = !indices.length;
  byId("discard").disabled = !indices.length;
  let text = `${indices.length.toLocaleString("en")} voxels changed`;
  if (indices.length && session.isKept) text += ", draft kept";
  say(text);
}

function say(text, ...buttons) {
  byId("correct-state").replaceChildren(text, ...buttons);
}

// ---- Saving ----

export async function save() {
  if (byId("save").disabled) return;
  const mine = session;
  const changes = changesOf(mine);
  const sent = page.picture.labels.slice();
  clearTimeout(mine.sending);
  const query = queryOf(mine);
  query.set("tab", mine.tab);
  byId("save").disabled = true;
  say("saving");
  const path = pathOf(mine.item);
  try {
    const options = { method: "PUT", body: packed(changes) };
    const saved = await askJson(`${path}/correction?${query}`, options);
    showRating(mine.item, saved);
    await dropTaken(mine);
    if (session !== mine) return;
    clearTimeout(mine.sending);
    mine.minutes = 0;
    mine.base = sent;
    mine.buildsOn = saved.builds_on;
    // Strokes painted while saving are a draft on top of the saved correction.
    mine.isKept = !changesOf(mine).indices.length;
    page.detail = saved;
    recount();
    scanChanged();
    report();
    say(`Saved as ${saved.correction.file}`);
    await keepNow();
    const surfaces = await ask(pathsOfMap(mine.item).surfaces);
    if (session === mine) {
      await page.picture.setSurfaces(await surfaces.arrayBuffer());
    }
  } catch (error) {
    if (session !== mine) return;
    byId("save").disabled = false;
    const load = make("button", { class: "chip" }, "Load it and apply my changes");
    load.addEventListener("click", () => rebase(mine));
    say(`Not saved: ${error.message}`, ...(error.status === 409 ? [load] : []));
  }
}

// Look at what was saved meanwhile, with one's own changes on it.
async function rebase(mine) {
  mine.isKept = false;
  await keepNow();
  if (!mine.isKept) return;
  rebasing = page.number;
  await open(rebasing);
}

// Back to what was shown; the draft goes.
export async function discard() {
  const mine = session;
  const { nv } = page.picture;
  const { indices } = changesOf(mine);
  const places = Uint8Array.from(indices, (index) => mine.base[index]);
  nv.brush.put(indices, places);
  nv.refreshDrawing(true);
  await keepNow();
}
