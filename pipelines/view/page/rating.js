// Rating a scan or a structure, and how far raters agree.
import {
  askJson,
  byId,
  cellsOf,
  make,
  page,
  pathOf,
  scanChanged,
  tell,
  withLayer,
} from "./page.js";
import { fillFilters, fillScanRow } from "./list.js";

// The buttons and the remark of a rater, and what others have said.
export function fillJudge(place, structure, what) {
  const { detail } = page;
  const ratings = detail.ratings.filter((each) => each.structure === structure);
  const own = ratings.find((each) => each.mine);
  const others = ratings.filter((each) => !each.mine);
  const prefix = structure ? "Shift+" : "";
  const buttons = page.study.verdicts.map((verdict, n) => {
    const given = own?.rating === verdict;
    return make("button", {
      class: "verdict",
      "data-grade": verdict,
      "aria-pressed": String(given),
      disabled: !detail.sha256,
      title: `Rate the ${what}: ${prefix}${n + 1}`,
      // A verdict that was given is taken back.
      onclick: () => rate(structure, given ? "" : verdict),
    }, verdict);
  });
  const remark = make("input", {
    type: "text",
    class: "remark",
    placeholder: "Remark",
    "aria-label": `Remark on the ${what}`,
    maxlength: 2000,
    disabled: !own,
    title: own ? null : "Rate first",
    onchange: () => rate(structure, own.rating, remark.value),
  });
  remark.value = own?.remark || "";
  place.replaceChildren(make("div", { class: "segments" }, ...buttons), remark);
  if (own?.stale) {
    const stale = "Stale: the result has changed since you rated it.";
    place.append(make("p", { class: "stale" }, stale));
  }
  if (others.length) {
    place.append(make("ul", { class: "others" }, ...others.map(otherRating)));
  }
}

function otherRating({ rater, rating, stale, remark }) {
  let said = ` ${rater}: ${rating}`;
  if (stale) said += " (stale)";
  if (remark) said += ` – ${remark}`;
  return make("li", {}, make("span", { class: "dot", "data-grade": rating }), said);
}

// Ratings are saved one after the other.
let lastSaved = Promise.resolve();

// Save a rating of the scan ("") or a structure; without a remark the one before stays.
export function rate(structure, rating, remark) {
  const { number, detail } = page;
  if (!detail?.sha256 || page.study.service) return;
  page.rated = structure;
  lastSaved = lastSaved.then(() => save(number, detail, structure, rating, remark));
}

async function save(number, shown, structure, rating, remark) {
  // With the ratings that were saved since.
  const detail = (page.number === number && page.detail) || shown;
  const own = detail.ratings.find((each) => each.mine && each.structure === structure);
  const body = JSON.stringify({
    structure,
    rating,
    remark: remark ?? own?.remark ?? "",
    sha256: shown.sha256,
  });
  const item = page.items[number];
  try {
    const path = withLayer(item, `${pathOf(item)}/ratings`);
    const saved = await askJson(path, { method: "PUT", body });
    // The next rating or correction applies to the map that is shown, even if the server has a
    // newer one.
    saved.sha256 = shown.sha256;
    saved.builds_on = shown.builds_on;
    showRating(item, saved);
    if (page.number === number) {
      page.detail = saved;
      scanChanged();
    }
  } catch (error) {
    tell(`not saved: ${error.message}`);
  }
}

// Show one's own rating in the list. Rows stay there until the filter is chosen anew: what one has
// just judged does not vanish.
export function showRating(item, { ratings }) {
  item.rating = ratings.find((each) => each.mine && !each.structure) || null;
  fillScanRow(item);
  fillFilters();
}

export async function showRaters() {
  try {
    const pairs = await askJson("v1/raters");
    const rows = pairs.map((pair) => {
      const kappa = pair.kappa === null ? "not defined" : pair.kappa.toFixed(2);
      const raters = `${pair.rater}, ${pair.other_rater}`;
      const same = `${pair.same_percent.toFixed(0)} %`;
      return make(
        "tr",
        {},
        ...cellsOf([pair.of, raters, pair.rated_by_both, same, kappa]),
      );
    });
    if (!rows.length) {
      const none = make("td", { colspan: 5 }, "No result has two raters.");
      rows.push(make("tr", {}, none));
    }
    byId("raters-rows").replaceChildren(...rows);
    byId("raters").showModal();
  } catch (error) {
    tell(error.message);
  }
}
