// A small plot of one column of a key over versions: a line that steps, because a value holds until the next change.

import { element } from "./dom.js";
import { number } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 60;
const NUMERIC = /^(tinyint|smallint|int|bigint|byte|short|integer|long|float|double|decimal.*)$/;

export const isNumeric = (type) => NUMERIC.test(type);

// Draws `points`, each [version, value or null], up to the version `last`. Returns null where the value never changed.
export function stepPlot(label, points, last) {
  const known = points.filter(([, value]) => value !== null && Number.isFinite(Number(value)));
  const values = known.map(([, value]) => Number(value));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (known.length === 0 || low === high) return null;
  const [least, most] = [low, high].map((bound) => known[values.indexOf(bound)][1]); // to the last digit
  const said = `${label}: ${least} to ${most}`;
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", `${said}, versions ${number(points[0][0])} to ${number(last)}`);
  svg.append(drawn("path", { d: stepPath(points, last, low, high) }));
  return element("figure", { class: "steps" }, element("figcaption", {}, said), svg);
}

// Each version has its width; a version without a number leaves a gap.
function stepPath(points, last, low, high) {
  const first = points[0][0];
  const x = (version) => (((version - first) / (last + 1 - first)) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - 2 - ((value - low) / (high - low)) * (HEIGHT - 4)).toFixed(1);
  let path = "";
  let isDrawing = false;
  points.forEach(([version, value], index) => {
    const end = points[index + 1]?.[0] ?? last + 1;
    const isKnown = value !== null && Number.isFinite(Number(value));
    if (isKnown) path += `${isDrawing ? "V" : `M${x(version)} `}${y(Number(value))}H${x(end)}`;
    isDrawing = isKnown;
  });
  return path;
}

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
