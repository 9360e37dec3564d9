// The numbers of the engine, each with its course over the steps on the timeline.

import { formatNumber, formatPercent, formatSeconds, make, setText } from "./dom.js";
import { Surface } from "./surface.js";

const CHART_HEIGHT = 34;
const POINTS = 120;
const RECENT = 48;
const UNKNOWN = "\u2013";

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

export class Charts {
  constructor(view) {
    this.view = view;
    this.charts = CHARTS.map((chart) => new Sparkline(chart, view));
    this.latencies = make("p", { class: "engine-note" });
    const tiles = make("dl", { class: "engine-tiles" }, ...this.charts.map(({ element }) => element));
    this.element = make("section", { class: "engine-panel", "aria-label": "Numbers" }, tiles, this.latencies);
  }

  draw() {
    const { log, player, header, status, timeline } = this.view;
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
    setText(this.latencies, describeLatencies(status));
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
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

function describeLatencies(status) {
  if (!status) return "";
  const spell = (values) => (values ? `${formatSeconds(values.p50)} (p99 ${formatSeconds(values.p99)})` : UNKNOWN);
  return `Last half minute: time to first token ${spell(status.ttft)}, between tokens ${spell(status.itl)}`;
}
