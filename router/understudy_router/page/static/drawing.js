// Curves and bars as SVG paths, as drawing.py draws them. What is unknown is a gap.

import { fixed } from "./words.js";

export const SPARK = { width: 120, height: 20 };
export const CURVE = { width: 600, height: 140 };

export function topOf(...series) {
  let top = 0;
  for (const points of series) for (const value of points) if (value !== null && value > top) top = value;
  return top || 1;
}

export function curvePath(points, top, { width, height }) {
  const step = width / Math.max(1, points.length - 1);
  let path = "";
  let run = 0;
  points.forEach((value, index) => {
    if (value === null) {
      run = 0;
      return;
    }
    const y = 1 + (height - 2) * (1 - Math.min(1, value / top));
    path += `${run ? "L" : "M"}${fixed(index * step, 1)} ${fixed(y, 1)}`;
    run += 1;
    if (run === 1 && (index + 1 === points.length || points[index + 1] === null)) path += "h1";
  });
  return path;
}

export const sparkPath = (points) => curvePath(points, topOf(points), SPARK);

export function barPercents(counts) {
  const top = Math.max(0, ...counts);
  return counts.map((value) => (value ? Math.max(2, Math.floor((value * 100) / top)) : 0));
}
