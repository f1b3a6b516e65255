// One curve: uPlot replaces the SVG of the first paint. The caption has the legend, so that of uPlot is switched off.

import { setText } from "./dom.js";
import { batches, clock, duration, number } from "./words.js";

const WRITTEN = { batches, ms: duration };
const ON_AXIS = { batches: number, ms: duration };
const NOTHING = { end: "1970-01-01T00:00:00Z", step_ms: 10_000 };
const DASHES = { freshness_p99_ms: [4, 3] };

// Makes a curve in `figure`; the page names its lines.
export function startCurve(figure) {
  const plot = figure.querySelector(".plot");
  const names = [...figure.querySelectorAll(".key")].map((key) => key.dataset.line);
  const written = WRITTEN[figure.dataset.unit];
  let chart = null;
  let shown = null;

  function draw(history) {
    shown = history;
    const lines = names.map((name) => history.series[name]);
    const top = lines.flat().reduce((most, value) => Math.max(most, value ?? 0), 0) || 1;
    setText(figure.querySelector('[data-slot="scale"]'), `up to ${written(top)}, last hour`);
    say(null);
    if (plot.clientWidth > 0) drawChart([timesOf(history), ...lines]);
  }

  // Writes the values into the caption: those below the pointer, or the last ones.
  function say(index) {
    for (const name of names) {
      const points = shown.series[name];
      const value = points[index ?? points.length - 1] ?? null;
      setText(figure.querySelector(`[data-now="${name}"]`), written(value));
    }
  }

  function drawChart(data) {
    if (chart === null) {
      plot.replaceChildren();
      chart = new globalThis.uPlot(options(figure, plot, names, say), data, plot);
      plot.setAttribute("aria-hidden", "true"); // a screen reader reads the caption instead
    } else chart.setData(data);
  }

  new ResizeObserver(() => {
    if (plot.clientWidth === 0) return; // the curve is hidden
    if (chart) chart.setSize({ width: plot.clientWidth, height: plot.clientHeight });
    else if (shown) draw(shown);
  }).observe(plot);

  return {
    draw,
    clear: () => draw({ ...NOTHING, series: Object.fromEntries(names.map((name) => [name, []])) }),
    // The colours of a canvas do not follow the theme, so the curve is drawn again.
    redraw() {
      chart?.destroy();
      chart = null;
      if (shown) draw(shown);
    },
  };
}

function timesOf(history) {
  const length = Math.max(...Object.values(history.series).map((points) => points.length));
  const endS = Date.parse(history.end) / 1000;
  return Array.from({ length }, (_, index) => endS - ((length - 1 - index) * history.step_ms) / 1000);
}

function options(figure, plot, names, say) {
  const onAxis = ON_AXIS[figure.dataset.unit];
  const ink = getComputedStyle(figure.querySelector(".key b")).color;
  const quiet = getComputedStyle(figure.querySelector(".key")).color;
  const line = getComputedStyle(plot).borderBottomColor;
  const axis = { stroke: quiet, font: "12px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: line, width: 1 } };
  return {
    width: plot.clientWidth,
    height: plot.clientHeight,
    legend: { show: false },
    cursor: { sync: { key: "understudy" }, drag: { x: false, y: false }, points: { size: 5 } },
    scales: { y: { range: (_, min, max) => [0, Math.max(1, max ?? 1) * 1.05] } },
    axes: [
      { ...axis, grid: { show: false }, size: 24, values: (_, splits) => splits.map((s) => clock(s * 1000).slice(0, 5)) },
      { ...axis, size: 56, values: (_, splits) => splits.map((value) => (Number.isInteger(value) ? onAxis(value) : "")) },
    ],
    series: [
      {},
      ...names.map((name) => ({ stroke: name.includes("p99") ? quiet : ink, width: 1.5, dash: DASHES[name], points: { show: false } })),
    ],
    hooks: { setCursor: [(chart) => say(chart.cursor.idx ?? null)] },
  };
}
