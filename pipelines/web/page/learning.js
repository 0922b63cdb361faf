// A service: a model is learnt from what was corrected, as a job of its queue.
import { askJson, byId, make, page, watchScan } from "./page.js";

const AT = "v1/learning";
const MODEL = "own.zip";
const REFRESH_MS = 2000;
let timer = 0;

export function startLearning() {
  byId("learn").addEventListener("click", () => follow({ method: "POST" }));
  // There is something to learn once a scan is corrected.
  watchScan(() => {
    if (page.detail?.correction) byId("learning").hidden = false;
  });
  follow();
}

// Ask how far the job is, or for a new one, until it has ended.
async function follow(options) {
  clearTimeout(timer);
  let job;
  try {
    job = await askJson(AT, options);
  } catch (error) {
    say(error.message);
    return;
  }
  if (!job) return;
  byId("learning").hidden = false;
  const isOver = ["done", "failed"].includes(job.state);
  byId("learn").disabled = !isOver;
  if (!isOver) {
    const waits = "waits for the scans before it";
    say(job.state === "queued" ? waits : job.said || "at work");
    timer = setTimeout(follow, REFRESH_MS);
  } else if (job.state === "done") {
    const model = make("a", { href: `${AT}/${MODEL}`, download: MODEL }, MODEL);
    say(`${job.lines.at(-1)} `, model);
  } else {
    say(`no model: ${job.reason}`);
  }
}

function say(...what) {
  byId("learning-state").replaceChildren(...what);
}
