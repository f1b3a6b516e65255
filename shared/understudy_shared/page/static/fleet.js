// The overview of the applications: loaded again every few seconds, and filtered while somebody types. The URL has the filter.

import { byId, setText } from "./dom.js";
import { startTheme } from "./theme.js";

const INTERVAL_MS = Number(document.body.dataset.intervalMs);
const TIMEOUT_MS = 5000;
let turn = 0;
let next = 0;

// Takes over what is drawn on the router: rows, title and time. The filter keeps what is typed, and the focus its place.
async function load() {
  clearTimeout(next);
  if (document.hidden) return;
  turn += 1;
  const mine = turn;
  const fresh = await drawn(location.href);
  if (mine !== turn) return;
  // Only now: a slow answer, or none, would otherwise always be that of an older turn.
  next = setTimeout(load, INTERVAL_MS);
  byId("live").dataset.state = fresh ? "live" : "silent";
  setText(byId("live"), fresh ? "live" : "no answer comes");
  if (fresh === null) return;
  const key = document.activeElement?.closest("tr")?.dataset.key;
  for (const id of ["rows", "now"]) byId(id).replaceChildren(...fresh.getElementById(id).childNodes);
  if (key !== undefined) rowOf(key)?.querySelector("a").focus();
  document.title = fresh.title;
  const said = fresh.getElementById("applications-title").textContent;
  if (said !== byId("applications-title").textContent) setText(byId("said"), said);
  setText(byId("applications-title"), said);
}

const rowOf = (key) => [...byId("rows").rows].find((row) => row.dataset.key === key);

// Returns the page as the router draws it now; null when it does not answer.
function drawn(address) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.timeout = TIMEOUT_MS;
    request.onloadend = () => resolve(request.status === 200 ? request.responseXML : null);
    request.send();
  });
}

function follow(event) {
  event.preventDefault();
  const chosen = [...new FormData(byId("filter"))].filter(([, value]) => value !== "");
  history.replaceState(null, "", chosen.length ? `?${new URLSearchParams(chosen)}` : "./");
  load();
}

document.documentElement.dataset.scripts = "";
byId("filter").addEventListener("input", follow);
byId("filter").addEventListener("submit", follow);
document.addEventListener("visibilitychange", load);
startTheme(byId("theme"), () => {});
load();
