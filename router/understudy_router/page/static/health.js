// The health line, the indicators below it, the title of the tab, and what a screen reader is told when it changes.

import { byId, fill, keyed, setAttribute, setText, setTime } from "./dom.js";
import { figureSlots, healthSlots, indicatorSlots, pageTitle, unwell } from "./views.js";
import { clock } from "./words.js";

let said = null;

export function updateHealth(overview) {
  const section = byId("health");
  setAttribute(section, "data-state", overview.health.state);
  const title = pageTitle(overview);
  if (document.title !== title) document.title = title;
  // The headline is told once, when it changes: the page that was loaded has been read already.
  if (said !== null && said !== overview.health.headline) setText(byId("said"), overview.health.headline);
  said = overview.health.headline;
  keyed(byId("indicators"), byId("t-indicator"), unwell(overview), (each) => each.name, (row, each) => {
    fill(row, indicatorSlots(each));
    setTime(row, each.since ?? "", each.since ? clock(each.since) : "?");
  });
  const { mark, headline, summary, runbook } = healthSlots(overview);
  fill(section.querySelector("h1"), { mark, headline });
  fill(byId("summary"), { summary, runbook });
}

export function updateFigures(overview) {
  fill(byId("figures"), figureSlots(overview));
}
