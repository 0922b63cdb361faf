// Rating a scan or a structure, and how far raters agree.
import {
  askJson,
  byId,
  cellsOf,
  make,
  page,
  pathOf,
  press,
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
  if (!place.firstChild) place.append(verdictButtons());
  const segments = place.firstChild;
  page.study.verdicts.forEach((verdict, n) => {
    const button = segments.children[n];
    const given = own?.rating === verdict;
    press(button, given);
    button.disabled = !detail.sha256;
    button.title = `Rate the ${what}: ${prefix}${n + 1}`;
    // A verdict that was given is taken back; a stale one is confirmed.
    button.onclick = () => rate(structure, given && !own.stale ? "" : verdict);
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
  while (segments.nextSibling) segments.nextSibling.remove();
  place.append(remark);
  if (own?.stale) {
    const stale = "Stale: the result has changed since you rated it.";
    place.append(make("p", { class: "stale" }, stale));
  }
  if (others.length) {
    place.append(make("ul", { class: "others" }, ...others.map(otherRating)));
  }
}

// The buttons stay in the page: a button that is replaced while it is held loses its click.
function verdictButtons() {
  const buttons = page.study.verdicts.map((verdict) =>
    make("button", { class: "verdict", "data-grade": verdict }, verdict)
  );
  return make("div", { class: "segments" }, ...buttons);
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
  if (page.picture?.state.flipped) {
    tell("Not rated: ratings are of the scan's own map. Press F to show it.");
    return;
  }
  tell("");
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
