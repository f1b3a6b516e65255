// How the page writes numbers. words.py has the same functions; a browser test holds one to the other.

export const UNKNOWN = "?";

const FRESH_MS = 2000;

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

const grouped = (whole) => String(whole).replace(/\B(?=(\d{3})+$)/g, ",");

export function number(value) {
  return value === null ? UNKNOWN : grouped(Math.floor(value + 0.5));
}

export function fixed(value, digits) {
  const scale = 10 ** digits;
  const scaled = Math.floor(value * scale + 0.5);
  const whole = grouped(Math.floor(scaled / scale));
  return digits ? `${whole}.${String(scaled % scale).padStart(digits, "0")}` : whole;
}

export function duration(ms) {
  if (ms === null) return UNKNOWN;
  const whole = Math.floor(ms + 0.5);
  if (whole < 1000) return `${whole} ms`;
  if (whole < 10_000) return `${fixed(whole / 1000, 1)} s`;
  if (whole < 120_000) return `${number(whole / 1000)} s`;
  if (whole < 7_200_000) return `${number(whole / 60_000)} min`;
  if (whole < 172_800_000) return `${number(whole / 3_600_000)} h`;
  return `${number(whole / 86_400_000)} d`;
}

// How old a report is, or was when it was sent: a part is sent again only when its age has become another.
export function age(ms) {
  if (ms === null) return UNKNOWN;
  if (ms < FRESH_MS) return "< 2 s";
  return ms < 120_000 ? `${Math.floor(ms / 1000)} s` : duration(ms);
}

export function size(bytes) {
  if (bytes === null) return UNKNOWN;
  let power = 0;
  let scaled = bytes;
  while (scaled >= 1000 && power < SIZES.length - 1) {
    power += 1;
    scaled /= 1000;
  }
  return `${fixed(scaled, power ? 1 : 0)} ${SIZES[power]}`;
}

export function rate(perS) {
  if (perS === null) return UNKNOWN;
  return perS >= 10 || perS === 0 ? number(perS) : fixed(perS, 1);
}

export function percent(value) {
  if (value === null) return UNKNOWN;
  const hundredths = Math.floor(value * 100);
  const whole = Math.floor(hundredths / 100);
  return hundredths % 100 === 0 ? `${whole} %` : `${whole}.${String(hundredths % 100).padStart(2, "0")} %`;
}

export function count(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

export const batches = (value) => count(value, "batch", "batches");

const two = (value) => String(value).padStart(2, "0");

// Local time of day; the page says UTC on hover.
export function clock(iso) {
  const at = new Date(iso);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
