// The parts of the page as texts: the overview in, [text, state, title, href] by slot out. views.py has the same functions.

import { LAGGING_FROM } from "./cells.js";
import { barPercents } from "./drawing.js";
import { UNKNOWN, age, batches, count, duration, fixed, number, percent, rate, size } from "./words.js";

const MARKS = { ok: "●", attention: "▲", hurt: "✕", moving: "↻", unknown: "?" };
const TRENDS = { steady: "→ steady", growing: "↑ growing", shrinking: "↓ shrinking", unknown: UNKNOWN };
const WORST_FIRST = { hurt: 0, unknown: 1, attention: 2 };
const MAX_AFFECTED = 12;
const NOTHING = "-";
const RUNBOOK = /^docs\/runbooks\/([\w-]+)\.md$/;

export function healthSlots(overview) {
  const { state, headline, runbook } = overview.health;
  return {
    mark: [MARKS[state] ?? UNKNOWN, state, state],
    headline: [headline, state],
    summary: [summary(overview.counts), "", "what this router knows of"],
    runbook: runbookLink(runbook, "Runbook: "),
  };
}

function summary(counts) {
  const words = [
    `${number(counts.nodes_live)} of ${count(counts.nodes_known, "node")} live`,
    count(counts.replicas, "replica"),
  ];
  for (const kind of ["running", "restoring", "dead", "unknown"]) {
    if (counts[kind]) words.push(`${number(counts[kind])} ${kind}`);
  }
  return words.join(" · ");
}

export const pageTitle = ({ application_id: id, health }) => `${MARKS[health.state] ?? UNKNOWN} ${id}: ${health.headline}`;

export function unwell(overview) {
  const found = overview.health.indicators.filter((each) => each.state !== "ok");
  return found.sort((a, b) => (WORST_FIRST[a.state] ?? 3) - (WORST_FIRST[b.state] ?? 3));
}

export function indicatorSlots(indicator) {
  const { affected } = indicator;
  const more = affected.length > MAX_AFFECTED ? ` and ${affected.length - MAX_AFFECTED} more` : "";
  return {
    mark: [MARKS[indicator.state] ?? UNKNOWN, indicator.state, indicator.state],
    name: [indicator.name],
    symptom: [indicator.symptom],
    impact: [indicator.impact],
    cause: [indicator.cause],
    action: [indicator.action],
    runbook: runbookLink(indicator.runbook),
    affected: [affected.slice(0, MAX_AFFECTED).join(", ") + more],
  };
}

// A runbook by its path in the repository, as the page of this router that has it.
function runbookLink(path, before = "") {
  const name = RUNBOOK.exec(path ?? "")?.[1];
  return name ? [before + name, "", "", `/admin/runbooks/${name}`] : [path ?? ""];
}

export function figureSlots(overview) {
  const { freshness, reads, lag, end, counts, bus } = overview;
  const place = lag.store === null ? "" : ` · ${lag.store} ${lag.partition} on ${lag.node_id}`;
  const unknown = lag.unknown ? ` · ${count(lag.unknown, "replica")} unknown` : "";
  const confirmed = end.confirmed ? "confirmed" : "not confirmed";
  const since = end.age_ms === null ? "" : ` ${age(end.age_ms)} ago`;
  return {
    freshness: [duration(freshness.p50_ms), "", "from the commit to the first answer that has it, median"],
    freshness_more: [`p99 ${duration(freshness.p99_ms)}`],
    reads: [`${rate(reads.per_s)}/s`, "", "lookups answered by this router"],
    reads_more: [`${rate(reads.errors_per_s)} errors/s`, reads.errors_per_s ? "attention" : ""],
    bound: [percent(reads.within_bound_percent), "", "answers inside the bound that was asked for"],
    bound_more: ["of answers"],
    lag: [batches(lag.worst_batches), lag.worst_batches === null ? "unknown" : ""],
    lag_more: [`${duration(lag.worst_ms)}${place}${unknown}`],
    nodes: [
      `${counts.nodes_live} of ${counts.nodes_known}`,
      counts.nodes_live === counts.nodes_known ? "" : "attention",
    ],
    nodes_more: ["live"],
    bus: [bus.state, bus.state === "connected" ? "" : "attention", bus.why],
    bus_more: [bus.why || "Redis or Valkey"],
    end: [number(end.version), end.confirmed ? "" : "unknown"],
    end_more: [`${confirmed}${since}`],
  };
}

const KINDS = [
  ["unserved", "hurt"],
  ["restoring", "moving"],
  ["unknown", "unknown"],
];

export function storeSlots(store) {
  const present = KINDS.filter(([name]) => store[name]);
  const words = present.map(([name]) => `${number(store[name])} ${name}`);
  const eta = store.eta_s === null ? "" : `, ETA ${duration(store.eta_s * 1000)}`;
  const isLagging = (store.worst_lag ?? 0) >= LAGGING_FROM && store.trend === "growing";
  const bound = store.within_bound_percent ?? null;
  return {
    name: [store.store],
    partitions: [number(store.partitions)],
    active: [number(store.active), store.active < store.partitions ? "hurt" : ""],
    standby: [number(store.standby)],
    warmup: [number(store.warmup)],
    lag: [
      number(store.worst_lag),
      store.worst_lag === null ? "unknown" : isLagging ? "attention" : "",
      `${batches(store.worst_lag)}, ${age(store.worst_lag_ms)}`,
    ],
    lag_ms: [age(store.worst_lag_ms)],
    bound: [bound === null ? NOTHING : percent(bound), "", "reads answered within their bound lately"],
    served: [servedWords(store), "", "how old its answers were"],
    trend: [`${TRENDS[store.trend] ?? UNKNOWN}${eta}`, isLagging ? "attention" : ""],
    wellness: [words.join(" · ") || "all served", present[0]?.[1] ?? ""],
  };
}

// How old the answers of a store were, but for one in a hundred.
function servedWords({ staleness_p99_ms: p99 = null, staleness_is_more: isMore }) {
  return p99 === null ? "" : `p99 ${isMore ? ">" : "≤"} ${duration(p99)}`;
}

const isOk = (health) => health === null || health === "ok";

export function nodeSlots(node) {
  const isWell = node.live && isOk(node.health) && node.degraded.length === 0;
  const words = isOk(node.health) ? [node.state] : [node.state, node.health];
  const waits = node.waits_for ? `waits for ${node.waits_for}` : "";
  const why = [waits, node.reason, ...node.degraded].filter(Boolean).join("; ");
  const state = isWell && node.state === "serving" ? "" : node.live ? "attention" : "hurt";
  const moving = state === "attention" ? "moving" : state;
  const states = { draining: moving, waiting: moving, unheard: "unknown" };
  const warmups = node.warmup ? `  ${number(node.warmup)} W` : "";
  const { safe } = node.safe_to_stop;
  return {
    name: [node.node_id],
    address: [`${node.host}:${node.port}`],
    zone: [node.zone || "-"],
    state: [words.join(", "), states[node.state] ?? state],
    why: [why],
    heartbeat: [age(node.heartbeat_age_ms), "", "since it was heard"],
    version: [number(node.version)],
    roles: [`${number(node.active)} A  ${number(node.standby)} S${warmups}`, "", "active, standby and warm-up replicas"],
    restoring: [node.restoring ? `${number(node.restoring)} restoring` : "", "moving"],
    safe: [safeWords(safe, node.live), safeState(safe, node.live)],
    safe_why: [node.live ? node.safe_to_stop.why : ""],
  };
}

function safeWords(safe, isLive) {
  if (!isLive) return "-";
  if (safe === null) return "? unknown";
  return safe ? "✓ safe" : "✕ not safe";
}

function safeState(safe, isLive) {
  if (!isLive || safe) return "";
  return safe === null ? "unknown" : "attention";
}

export function restoreSlots(restore) {
  const { done_bytes: done, total_bytes: total, bytes_per_s: perS } = restore;
  const words = [`${size(done)} of ${size(total)}`];
  if (perS !== null) words.push(`${size(perS)}/s`);
  const isKnown = done !== null && Boolean(total);
  if (isKnown && perS) words.push(`${duration((Math.max(0, total - done) * 1000) / perS)} left`);
  return {
    place: [`${restore.stores.join(" and ")} ${restore.task.slice(restore.task.indexOf("_") + 1)} on ${restore.node_id}`],
    stage: [restore.stage, "moving"],
    share: [isKnown ? `${Math.min(100, Math.floor((done * 100) / total))} %` : UNKNOWN],
    bytes: [words.join(" · ")],
  };
}

export function disagreementSlots(row) {
  return { node: [row.node_id], router_says: [row.router_says, "attention"], node_says: [row.node_says] };
}

export const eventSlots = (event) => ({ event: [event.event], detail: [event.detail] });

export const eventAnchor = (event) => `event-${event.id}-${event.at}`;

export function stalenessBars({ staleness }) {
  const { le_ms: bounds = [], counts = [] } = staleness;
  const total = counts.reduce((sum, value) => sum + value, 0);
  if (!total) return [];
  const heights = barPercents(counts);
  const bars = counts.map((value, index) => ({
    label: barLabel(bounds, index),
    answers: number(value),
    share: `${fixed((value * 100) / total, 1)} %`,
    percent: heights[index],
  }));
  const first = counts.findIndex(Boolean);
  const last = counts.findLastIndex(Boolean);
  return bars.slice(Math.max(0, first - 1), last + 2);
}

function barLabel(bounds, index) {
  const bound = bounds[index] ?? null;
  if (bound !== null) return `≤ ${duration(bound)}`;
  return index ? `> ${duration(bounds[index - 1])}` : "any";
}
