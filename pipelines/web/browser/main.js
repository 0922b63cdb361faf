// The page of a site that `trinat export --format web` wrote: that of a service, answered by the
// page itself.
import { answerBy, byId, make, page, tell } from "../page/page.js";
import { filesIn, scansOf } from "./dropped.js";
import { Site } from "./site.js";

const HOW =
  "T1-weighted: NIfTI, MGZ, or a folder of DICOM files. Nothing leaves this machine.";
const STEPS = [
  "Drop a T1-weighted scan of a head anywhere on this page, or choose a file: NIfTI or MGZ. DICOM files are dropped as a folder.",
  "It is segmented here, on this machine, by this browser. Nothing is uploaded.",
  "Look at the structures and their volumes, and take the label map with you.",
];

async function main() {
  const answer = await fetch("model/settings.json");
  const site = new Site(await answer.json());
  globalThis.trinatSite = site;
  site.changed = () => page.refresh();
  answerBy((path, options) => Promise.resolve(site.ask(path, options)));
  byId("how").textContent = HOW;
  byId("steps").replaceChildren(...STEPS.map((step) => make("li", {}, step)));
  for (const box of document.querySelectorAll(".output")) {
    box.closest("p").hidden = true;
  }
  page.filesIn = filesIn;
  page.scansOf = scansOf;
  // DICOM files may have any name.
  byId("file").removeAttribute("accept");
  if (!globalThis.crossOriginIsolated) {
    byId("how").textContent +=
      " On one thread: the server sends no COOP and COEP headers.";
  }
  await import("../page/view.js");
  byId("where").textContent =
    "Scans and results are in this page alone, until it is closed.";
}

main().catch((error) => tell(error.message));
