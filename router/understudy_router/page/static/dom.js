// The document, changed in place and only where it differs. Everything is made of elements and texts: Trusted Types
// refuse HTML made of strings, so no name out of the cluster can become markup.

const NO_MOTION = matchMedia("(prefers-reduced-motion: reduce)");
const found = new WeakMap();

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

// The slots of a row or part, by name.
export function slotsOf(root) {
  let slots = found.get(root);
  if (!slots) {
    slots = new Map([...root.querySelectorAll("[data-slot]")].map((each) => [each.dataset.slot, each]));
    found.set(root, slots);
  }
  return slots;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === "" || value === null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Writes what slots show: [text, state, title, href] by name, as Shown in views.py.
export function fill(root, shown) {
  const slots = slotsOf(root);
  for (const [name, [text, state = "", title = "", href = ""]] of Object.entries(shown)) {
    const slot = slots.get(name);
    if (!slot) continue;
    if (slot.textContent !== text) {
      slot.textContent = text;
      if (slot.classList.contains("value")) flash(slot);
    }
    setAttribute(slot, "data-state", state);
    setAttribute(slot, "title", title);
    if (slot.tagName === "A") setAttribute(slot, "href", href);
  }
}

function flash(node) {
  if (NO_MOTION.matches || document.hidden) return;
  node.animate([{ backgroundColor: "var(--flash)" }, { backgroundColor: "transparent" }], 600);
}

// Makes the children of `parent` those of `items`, in their order; a child that is there stays the same element, and is
// not moved for what goes or comes before it: it may have the focus.
export function keyed(parent, template, items, keyOf, update) {
  const keys = items.map((item) => String(keyOf(item)));
  const wanted = new Set(keys);
  const byKey = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key) && !byKey.has(child.dataset.key)) byKey.set(child.dataset.key, child);
    else child.remove();
  }
  let next = parent.firstElementChild;
  items.forEach((item, index) => {
    let child = byKey.get(keys[index]);
    byKey.delete(keys[index]); // a second item of the same key gets an element of its own
    if (!child) {
      child = template.content.firstElementChild.cloneNode(true);
      child.dataset.key = keys[index];
    }
    update(child, item);
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  });
}

export function setTime(node, iso, text) {
  const time = node.tagName === "TIME" ? node : node.querySelector("time");
  setAttribute(time, "datetime", iso);
  setAttribute(time, "title", iso);
  setText(time, text);
}
