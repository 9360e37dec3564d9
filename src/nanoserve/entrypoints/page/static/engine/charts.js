// The numbers of the engine, each with its course over the steps on the timeline.

import { formatNumber, formatPercent, formatSeconds, make, setText } from "./dom.js";
import { Surface } from "./surface.js";

const CHART_HEIGHT = 34;
const POINTS = 120;
const RECENT = 48;
const UNKNOWN = "\u2013";
const HALF_MINUTE = 30;

/** What is shown: `read` gives a column's value (null: unknown), `write` the text for now. */
const CHARTS = [
  { name: "Throughput", colour: "decode", read: (_, rate) => rate, write: ({ rate }) => `${formatNumber(rate)} tok/s` },
  { name: "Step latency", colour: "prefill", read: latencyOf, write: writeLatency },
  { name: "KV in use", colour: "accent", read: (column, _, total) => usage(column, total), write: writeUsage, most: 1 },
  { name: "Prefix hits", colour: "hit", read: hitRate, write: writeHits, most: 1 },
  { name: "Running", colour: "decode", read: ({ running }) => running, write: ({ phases }) => formatNumber(phases.running) },
  { name: "Waiting", colour: "queued", read: ({ waiting }) => waiting, write: writeWaiting },
  { name: "Preemptions", colour: "preempted", read: ({ preempted }) => preempted.length, write: writePreemptions },
];

/** Numbers without a course, from `factsOf`: `write` gives the number, `about` what is said below it. */
const COUNTS = [
  { name: "TTFT, p50", write: ({ ttft }) => writeMedian(ttft), about: ({ ttft }) => aboutTail(ttft) },
  { name: "ITL, p50", write: ({ itl }) => writeMedian(itl), about: ({ itl }) => aboutTail(itl) },
  { name: "Finished", write: ({ finished }) => sumOf(finished), about: ({ finished }) => spellCounts(finished), isWide: true },
  { name: "Errors", write: ({ finished }) => formatNumber(finished.error ?? 0), isBad: ({ finished }) => finished.error > 0 },
  { name: "Refused", write: ({ rejected }) => sumOf(rejected), about: ({ rejected }) => spellCounts(rejected), isLive: true },
  { name: "Engine restarts", write: ({ restarts }) => formatNumber(restarts), isBad: ({ restarts }) => restarts > 0 },
];

export class Charts {
  constructor(view) {
    this.view = view;
    this.charts = CHARTS.map((chart) => new Sparkline(chart, view));
    this.counts = COUNTS.filter(({ isLive }) => view.player.isLive || !isLive).map((count) => new Count(count));
    const tiles = make("dl", { class: "engine-tiles" }, ...[...this.charts, ...this.counts].map(({ element }) => element));
    this.element = make("section", { class: "engine-panel", "aria-label": "Numbers" }, tiles);
  }

  draw() {
    const { log, player, header, timeline } = this.view;
    const { history } = log;
    const to = player.numColumns;
    const columns = [];
    for (let number = Math.max(to - timeline.window.zoom, history.first); number < to; number += 1) {
      const column = history.column(number);
      if (!column.gap) columns.push({ ...column, isHome: column.endedBy < player.position });
    }
    const home = columns.filter(({ isHome }) => isHome);
    const total = header?.num_blocks ?? 0;
    const { replay } = player;
    const now = { replay, phases: replay.countPhases(), total, latency: usualLatency(home.slice(-RECENT)) };
    now.rate = player.isLive && replay.sequences.size === 0 ? 0 : rateOver(home.slice(-RECENT));
    const rates = home.map((_, index) => rateOver(home.slice(Math.max(index - 8, 0), index + 1)));
    for (const chart of this.charts) chart.draw(home, rates, total, now);
    const facts = (player.isLive && this.view.status) || factsOf(this.view);
    for (const count of this.counts) count.draw(facts);
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
  }
}

class Count {
  constructor(count) {
    Object.assign(this, count);
    this.number = make("span", { class: "engine-number" });
    this.note = make("span", { class: "engine-note" });
    this.element = make("div", { class: this.isWide ? "engine-tile is-wide" : "engine-tile" }, make("dt", { text: this.name }), make("dd", {}, this.number, this.note));
  }

  draw(facts) {
    setText(this.number, this.write(facts));
    setText(this.note, this.about?.(facts) ?? "");
    this.element.classList.toggle("is-bad", this.isBad?.(facts) ?? false);
  }
}

class Sparkline {
  constructor(chart, view) {
    Object.assign(this, chart, { view });
    this.number = make("span", { class: "engine-number" });
    const canvas = make("canvas", { "aria-hidden": "true" });
    const figure = make("div", { class: "engine-picture" }, canvas);
    this.surface = new Surface(canvas, view.invalidate);
    const value = make("dd", {}, this.number, figure);
    this.element = make("div", { class: "engine-tile" }, make("dt", { text: this.name }), value);
  }

  draw(columns, rates, total, now) {
    setText(this.number, this.write(now));
    const context = this.surface.clear(CHART_HEIGHT);
    if (!context) return;
    const values = columns.map((column, index) => this.read(column, rates[index], total));
    const { palette } = this.view;
    const look = { most: this.most, colour: palette[this.colour], line: palette.line, width: this.surface.width };
    paintSparkline(context, thin(values), look);
  }

  destroy() {
    this.surface.destroy();
  }
}

function paintSparkline(context, values, { most, colour, line, width }) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) {
    context.fillStyle = line;
    context.fillRect(0, CHART_HEIGHT - 2, width, 1);
    return;
  }
  const ceiling = most ?? Math.max(...known, 1e-9);
  const place = (value, index) => [
    (index * width) / (values.length - 1),
    CHART_HEIGHT - 2 - ((CHART_HEIGHT - 5) * value) / ceiling,
  ];
  const points = values.map((value, index) => (value === null ? null : place(value, index))).filter(Boolean);
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.strokeStyle = colour;
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(points.at(-1)[0], CHART_HEIGHT);
  context.lineTo(points[0][0], CHART_HEIGHT);
  context.globalAlpha = 0.16;
  context.fillStyle = colour;
  context.fill();
  context.globalAlpha = 1;
}

/** No more points than can be told apart; each is the highest of those that it stands for. */
function thin(values) {
  const per = Math.ceil(values.length / POINTS);
  if (per <= 1) return values;
  return Array.from({ length: Math.ceil(values.length / per) }, (_, index) => {
    const some = values.slice(index * per, (index + 1) * per).filter((value) => value !== null);
    return some.length ? Math.max(...some) : null;
  });
}

function latencyOf({ startedAt = null, endedAt = null }) {
  return startedAt === null || endedAt === null ? null : endedAt - startedAt;
}

/** The median of the steps whose time is known. */
function usualLatency(columns) {
  const known = columns.map(latencyOf).filter((latency) => latency !== null);
  return known.sort((a, b) => a - b)[known.length >> 1] ?? null;
}

/** Generated tokens per second over the steps whose time is known. */
function rateOver(columns) {
  let [tokens, seconds] = [0, 0];
  for (const column of columns) {
    const latency = latencyOf(column);
    if (latency === null) continue;
    tokens += column.numGenerated;
    seconds += latency;
  }
  return seconds > 0 ? tokens / seconds : 0;
}

function usage({ held }, total) {
  return total ? Math.max(...held, 0) / total : 0;
}

function hitRate({ queries, hits }) {
  return queries ? hits / queries : 0;
}

function writeUsage({ replay, total }) {
  const held = replay.references.map((_, group) => replay.countHeld(group));
  return formatPercent(Math.max(...held, 0), total);
}

function writeLatency({ latency }) {
  return latency === null ? UNKNOWN : formatSeconds(latency);
}

function writeHits({ replay }) {
  return replay.prefixQueries ? formatPercent(replay.prefixHits, replay.prefixQueries) : UNKNOWN;
}

function writeWaiting({ phases }) {
  return formatNumber(phases.waiting + phases.preempted);
}

function writePreemptions({ replay }) {
  return formatNumber(replay.preemptions);
}

/** What the log knows of the moment that is shown, in the words of the server's `status`. */
function factsOf({ player, log: { history } }) {
  const columns = history.columns.filter(({ number }) => number < player.numColumns);
  const now = columns.findLast(({ endedBy }) => endedBy < player.position)?.endedAt ?? -Infinity;
  const isRecent = (at) => at !== null && at <= now && at > now - HALF_MINUTE;
  const rows = [...history.rows.values()].filter(({ firstAt, arrivedAt }) => arrivedAt !== null && isRecent(firstAt));
  const gaps = columns.flatMap(({ endedAt, endedBy, decoding = [] }, index) => {
    const before = columns[index - 1]?.endedAt ?? null;
    return endedBy < player.position && isRecent(endedAt) && before !== null ? decoding.map(() => endedAt - before) : [];
  });
  return {
    ttft: quantiles(rows.map((row) => firstTokenAfter(row, history)).filter((seconds) => seconds !== null)),
    itl: quantiles(gaps),
    finished: Object.fromEntries(player.replay.finished),
    rejected: {},
    restarts: columns.filter(({ gap }) => gap === "restart").length,
  };
}

/** Where one record tells of a sequence's arrival and of its first token, it took as long as its step. */
function firstTokenAfter({ arrivedAt, firstAt, spans }, history) {
  if (firstAt > arrivedAt) return firstAt - arrivedAt;
  return latencyOf(history.column(spans.find(({ kind }) => kind === "chunk")?.from) ?? {});
}

function quantiles(values) {
  if (!values.length) return null;
  values.sort((a, b) => a - b);
  const at = (share) => values[Math.min(Math.floor(share * values.length), values.length - 1)];
  return { p50: at(0.5), p99: at(0.99) };
}

function writeMedian(values) {
  return values ? formatSeconds(values.p50) : UNKNOWN;
}

function aboutTail(values) {
  return values ? `p99 ${formatSeconds(values.p99)}` : "";
}

function sumOf(counts) {
  return formatNumber(Object.values(counts).reduce((sum, count) => sum + count, 0));
}

/** `12 stop, 3 length`: what there was, the most first. */
function spellCounts(counts) {
  const some = Object.entries(counts).filter(([, count]) => count > 0).sort(([, a], [, b]) => b - a);
  return some.map(([reason, count]) => `${formatNumber(count)} ${reason.replaceAll("_", " ")}`).join(", ");
}
