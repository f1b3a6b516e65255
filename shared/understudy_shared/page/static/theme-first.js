// Runs before the first paint, so that a page never flashes in the other theme. theme.js has the button.
"use strict";
try {
  const kept = localStorage.getItem("understudy-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // Storage may be refused: then the system's theme stays.
}
