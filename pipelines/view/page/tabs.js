// The tabs of the page: beside one another in a wide window, one at a time in a narrow one.
import { byId, make, page, press, watchScan } from "./page.js";

const tabs = [];

/**
 * Add a tab: a section of the page, and a button that brings it to the front.
 *
 * - `id`, `title`: of the section, which is made unless the page has it.
 * - `column`: "left", "middle" or "right" of a wide window; tabs of one column take turns there.
 * - `withPicture`: whether the picture stays in sight in a narrow window.
 * - `build(section)`: called once, when the study is known.
 * - `fill(section)`: called whenever something else is known of the scan that is looked at.
 */
export function addTab(tab) {
  const section = byId(tab.id) || make("aside", { id: tab.id, class: "free" });
  section.classList.add("tab", tab.column);
  section.setAttribute("aria-label", tab.title);
  if (!section.isConnected) document.querySelector("main").append(section);

  const choose = () => {
    showTab(tab.id);
    page.picture?.resize();
  };
  const facts = { "data-tab": tab.id, onclick: choose };
  const button = make("button", facts, tab.title);
  const isFirst = !tabs.some((other) => other.column === tab.column);
  section.classList.toggle("behind", !isFirst);
  button.classList.toggle("front", isFirst);
  tabs.push({ ...tab, section, button });
  const nav = document.querySelector("nav");
  nav.append(button);
  for (const { column, button } of tabs) {
    const others = tabs.filter((other) => other.column === column);
    button.classList.toggle("alone", others.length === 1);
  }
  nav.classList.toggle("several", tabs.some((each) => !each.button.matches(".alone")));

  if (tab.build) tab.build(section);
  if (tab.fill) watchScan(() => tab.fill(section));
}

// Bring a tab to the front.
export function showTab(id) {
  const chosen = tabs.find((tab) => tab.id === id);
  if (chosen.section.matches(".chosen")) return;
  for (const { column, section, button } of tabs) {
    const isChosen = section === chosen.section;
    section.classList.toggle("chosen", isChosen);
    press(button, isChosen);
    if (column === chosen.column) {
      section.classList.toggle("behind", !isChosen);
      button.classList.toggle("front", isChosen);
    }
  }
  document.body.classList.toggle("split", Boolean(chosen.withPicture));
}
