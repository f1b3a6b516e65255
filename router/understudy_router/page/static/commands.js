// The question as a command, for curl and for the command line of Understudy; and a button that copies it.

import { element } from "./dom.js";

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

const words = (...parts) => parts.map(quoted).join(" ");

// The paths of the calls; the page itself uses them as well.
export function lookupPath(store, key, bounds) {
  return `/v1/stores/${encodeURIComponent(store)}/lookup?${new URLSearchParams({ key, ...bounds })}`;
}

export function explainPath(store, key, bounds) {
  return `/v1/stores/${encodeURIComponent(store)}/metadata?${new URLSearchParams({ key, ...bounds })}`;
}

export const asCurl = (path) => words("curl", "-s", `${location.origin}${path}`);

const flags = (bounds) =>
  Object.entries(bounds).flatMap(([name, value]) => {
    const flag = `--${name.replaceAll("_", "-")}`;
    return value === "true" ? [flag] : [flag, value];
  });

export const lookupCommand = (store, key, bounds) =>
  words("understudy", "lookup", store, key, ...flags(bounds), "--url", location.origin);

export const explainCommand = (store, key, bounds) =>
  words("understudy", "explain", store, "--key", key, ...flags(bounds), "--url", location.origin);

export function commandLine(name, text) {
  const code = element("code", { tabIndex: 0 }, text);
  const button = element("button", { type: "button" }, `Copy ${name}`);
  button.addEventListener("click", () => copy(text, button, code));
  return element("p", { class: "command" }, code, button);
}

// Without TLS, only a page of localhost has a clipboard: elsewhere the text is selected for Ctrl-C.
export async function copy(text, button, shown = null) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    if (shown) getSelection().selectAllChildren(shown);
    button.textContent = shown ? "Selected: press Ctrl-C" : "No clipboard here";
  }
  setTimeout(() => {
    button.textContent = label;
  }, 2000);
}
