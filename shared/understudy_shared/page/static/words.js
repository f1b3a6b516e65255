// How the page writes numbers in curves and answers, as words.py does: a browser test holds one to the other.

const grouped = (whole) => String(whole).replace(/\B(?=(\d{3})+$)/g, ",");

export const number = (value) => (value === null ? "?" : grouped(Math.floor(value + 0.5)));

const tenths = (value) => (Math.floor(value * 10 + 0.5) / 10).toFixed(1);

export function duration(ms) {
  if (ms === null) return "?";
  const whole = Math.floor(ms + 0.5);
  if (whole < 1000) return `${whole} ms`;
  if (whole < 10_000) return `${tenths(whole / 1000)} s`;
  if (whole < 120_000) return `${number(whole / 1000)} s`;
  if (whole < 7_200_000) return `${number(whole / 60_000)} min`;
  if (whole < 172_800_000) return `${number(whole / 3_600_000)} h`;
  return `${number(whole / 86_400_000)} d`;
}

export const batches = (value) => `${number(value)} ${value === 1 ? "batch" : "batches"}`;

const two = (value) => String(value).padStart(2, "0");

// Local time of day; the page says UTC on hover.
export function clock(iso) {
  const at = new Date(iso);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
