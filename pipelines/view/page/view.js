// The page of `trinat view` and of a service: its tabs, and how it starts.
import { askJson, byId, page, tell } from "./page.js";
import { startControls } from "./controls.js";
import { startCorrecting } from "./correct.js";
import { go, startKeys } from "./keys.js";
import { fillList, listTab } from "./list.js";
import { startParcels } from "./parcels.js";
import { showRaters } from "./rating.js";
import { open, openFirst, scanTab } from "./scan.js";
import { nameScans, startService } from "./service.js";
import { structuresTab } from "./structures.js";
import { addTab, showTab } from "./tabs.js";

// In the order in which a narrow window names them.
const TABS = [listTab, scanTab, structuresTab];

async function main() {
  page.study = await askJson("v1/study");
  const { study } = page;
  page.structures = study.structures;
  byId("title").textContent = study.title;
  document.title = `${study.title} – trinat`;
  for (const tab of TABS) addTab(tab);
  showTab("picture");
  startControls();
  startCorrecting();
  startParcels();
  startKeys();
  byId("raters-open").hidden = study.raters < 2;
  byId("raters-open").addEventListener("click", showRaters);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("previous").addEventListener("click", () => go(-1));
  byId("next").addEventListener("click", () => go(1));
  byId("scan-list").addEventListener("click", (event) => {
    const row = event.target.closest(".scan");
    if (!row) return;
    showTab("picture");
    open(Number(row.dataset.number));
  });
  if (study.service) nameScans(study.scans);
  fillList();
  if (study.service) startService();
  else await openFirst();
}

main().catch((error) => tell(error.message));
