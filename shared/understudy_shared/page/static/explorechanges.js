// The keys that the last minute put or deleted, the newest change first.

import { refused, scrolled, shown, table } from "./answer.js";
import { foldedCommands } from "./commands.js";
import { element } from "./dom.js";
import { storePath } from "./paths.js";
import { number } from "./words.js";

const TIMEOUT_MS = 30_000;
const MAX_ROWS = 200;
const MAX_BYTES = 4_000_000;

export function startChanges(place) {
  let leaving = new AbortController();

  function clear() {
    leaving.abort();
    place.replaceChildren();
  }

  async function show(store) {
    clear();
    leaving = new AbortController();
    const { signal } = leaving;
    const path = `${storePath(store.store)}/changes?from=1m&longs=string`;
    place.replaceChildren(element("p", { class: "quiet" }, "Reading the changes…"));
    try {
      const { problem, lines, isWhole } = await read(path, signal);
      if (signal.aborted) return;
      place.replaceChildren(...(problem ? refused(problem) : parts(store, lines, isWhole)), ...(problem ? [] : [foldedCommands(path)]));
    } catch (error) {
      if (!signal.aborted) place.replaceChildren(...refused({ title: "No answer", type: "no-answer", detail: error.message }));
    }
  }

  return { show, clear };
}

// Reads the stream up to a size. A problem comes instead of it, or as its last line.
async function read(path, signal) {
  const reply = await fetch(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]), cache: "no-store" });
  if (!reply.ok) return { problem: await reply.json() };
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let isDone = false;
  while (!isDone && text.length < MAX_BYTES) {
    const { done, value } = await reader.read();
    isDone = done;
    text += value ?? "";
  }
  if (!isDone) await reader.cancel();
  const lines = text.slice(0, text.lastIndexOf("\n")).split("\n").filter(Boolean).map((line) => JSON.parse(line));
  return { problem: lines.find((line) => line.error)?.error, lines, isWhole: isDone };
}

function parts(store, lines, isWhole) {
  const changes = lines.map((line) => line.change).filter(Boolean).reverse();
  const more = isWhole ? "" : " or more";
  const some = changes.length > MAX_ROWS ? `, the last ${number(MAX_ROWS)} here` : "";
  const said = changes.length ? `${number(changes.length)}${more} changes in the last minute${some}.` : "Nothing changed in the last minute.";
  const rows = changes.slice(0, MAX_ROWS).map(({ version, found, key, partition: _, ...content }) => [
    number(version),
    Object.values(key).map(shown).join(", "),
    found ? shown(content.result ?? content.value ?? content) : "deleted",
  ]);
  const label = `Changes of ${store.store}`;
  return [element("p", {}, said), ...(rows.length ? [scrolled(label, table(["version", "key", "holds"], rows))] : [])];
}
