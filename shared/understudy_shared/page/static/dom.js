// Changes to the document: in place and only where it differs, so that focus, scroll position and selection stay.

const NO_MOTION = matchMedia("(prefers-reduced-motion: reduce)");

export const byId = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The only policy that makes markup of a text, for the parts that this router has drawn. The headers of the page allow
// no other policy, and no second one of this name.
const DRAWN = { createHTML: (text) => text };
const policy = globalThis.trustedTypes?.createPolicy("understudy", DRAWN) ?? DRAWN;

export const parsed = (html) => new DOMParser().parseFromString(policy.createHTML(html), "text/html").body;

// What scripts and readers set themselves.
const KEPT = ["tabindex", "open"];

// Makes `old` equal to `fresh`. Elements with `data-keep` belong to the scripts and are left alone.
export function patch(old, fresh) {
  if (old.isEqualNode(fresh) || "keep" in old.dataset || old.localName === "noscript") return;
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !KEPT.includes(name)) old.removeAttribute(name);
  const [before, now] = [old, fresh].map((each) => [...each.childNodes].filter((node) => !isBlank(node)));
  const keys = new Set(now.map(keyOf));
  const byKey = new Map();
  const unkeyed = [];
  for (const node of before) {
    const key = keyOf(node);
    if (key === null) unkeyed.push(node);
    else if (keys.has(key) && !byKey.has(key)) byKey.set(key, node);
    else node.remove();
  }
  const pairs = now.map((node) => [successor(node, byKey, unkeyed), node]);
  for (const node of unkeyed) node.remove();
  place(old, pairs);
}

const isBlank = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim() === "";
const keyOf = (node) => node.dataset?.key ?? (node.id || null);

// Returns the present node for `fresh`, if it has the same name; a second one of the same key gets a new node.
function successor(fresh, byKey, unkeyed) {
  const key = keyOf(fresh);
  const found = key === null ? unkeyed.shift() : byKey.get(key);
  byKey.delete(key);
  if (found === undefined || found.nodeName === fresh.nodeName) return found;
  found.remove();
  return undefined;
}

// Present nodes are not moved when nodes before them come or go, because they may have the focus.
function place(parent, pairs) {
  let next = unblank(parent.firstChild);
  for (const [there, fresh] of pairs) {
    if (there && there === next) next = unblank(next.nextSibling);
    else parent.insertBefore(there ?? document.importNode(fresh, true), next);
    if (there) renew(there, fresh);
  }
}

const unblank = (node) => (node && isBlank(node) ? unblank(node.nextSibling) : node);

function renew(there, fresh) {
  if (there.nodeType === Node.ELEMENT_NODE) patch(there, fresh);
  else if (there.data !== fresh.data) {
    there.data = fresh.data;
    if (there.parentElement.classList.contains("value")) flash(there.parentElement);
  }
}

function flash(node) {
  if (NO_MOTION.matches || document.hidden) return;
  node.animate([{ backgroundColor: "var(--flash)" }, { backgroundColor: "transparent" }], 600);
}
