// The timeline of many sequences: a strip of heat for each row of the batch, or for several, and one sequence that is followed.

import { paintRow, paintRowName } from "./timeline_paint.js";

const MOST_LANES = 24;
const [LEAST_HEIGHT, MOST_HEIGHT] = [13, 24]; // of a lane, which has a name
const LEAST_STRIP = 3;
const FOLLOWED_HEIGHT = 28;
const WAITING_HEIGHT = 20;
const LEAST_BIN = 2; // pixels
const LEVELS = 12; // shades of each colour
const LEAST_HEAT = 0.1; // of an answer's first token
const NOBODY_FOLLOWED = "Click a row to follow its sequence here";

export class TimelineCrowd {
  isMoving = false;

  constructor() {
    this.numSeats = 0;
  }

  /** Lay out the rows of the batch that the sequences `alive` have in the columns [from, to). */
  arrange(alive, { from, to, height }) {
    this.alive = alive;
    const spans = alive.flatMap((row) => row.spans).filter((span) => span.from < to && (span.to ?? to) > from);
    const numSeats = spans.reduce((most, { seat = -1 }) => Math.max(most, seat + 1), 1);
    if (numSeats > this.numSeats || numSeats < this.numSeats / 2) this.numSeats = numSeats;
    this.perLane = 2 ** Math.max(Math.ceil(Math.log2(this.numSeats / MOST_LANES)), 0);
    this.numLanes = Math.ceil(this.numSeats / this.perLane);
    this.laneHeight = Math.min(Math.max(Math.floor(height / this.numLanes), LEAST_HEIGHT), MOST_HEIGHT);
    this.perStrip = (this.laneHeight - 2) / this.perLane < LEAST_STRIP ? this.perLane : 1;
    this.stripHeight = ((this.laneHeight - 2) * this.perStrip) / this.perLane;
    this.height = FOLLOWED_HEIGHT + this.numLanes * this.laneHeight + WAITING_HEIGHT;
  }

  /** The sequences that have a row at a column, in the order of the rows; with a place, those of its strip. */
  at(column, y = null) {
    const [first, end] = y === null ? [0, Infinity] : this.seatsAt(y);
    const found = this.alive.map((row) => ({ row, seat: row.spans.find((span) => isAt(span, column))?.seat ?? -1 }));
    const inside = found.filter(({ seat }) => seat >= first && seat < end);
    return inside.sort((a, b) => a.seat - b.seat).map(({ row }) => row);
  }

  /** The rows of the batch [first, end) of the strip at a place. */
  seatsAt(y) {
    const inLanes = y - FOLLOWED_HEIGHT;
    const lane = Math.floor(inLanes / this.laneHeight);
    if (lane < 0 || lane >= this.numLanes) return [0, 0];
    const perLane = this.perLane / this.perStrip;
    const strip = Math.min(Math.floor((inLanes - lane * this.laneHeight) / this.stripHeight), perLane - 1);
    const first = (lane * perLane + strip) * this.perStrip;
    return first < this.numSeats ? [first, Math.min(first + this.perStrip, this.numSeats)] : [0, 0];
  }

  /** What the strip at a place is called. */
  nameAt(y) {
    return nameSeats(...this.seatsAt(y));
  }

  paint(scene) {
    const { context, palette, scale, history, selected } = scene;
    this.#paintNames(scene);
    context.fillStyle = palette.free;
    for (let lane = 0; lane < this.numLanes; lane += 1) {
      const y = FOLLOWED_HEIGHT + lane * this.laneHeight;
      context.fillRect(scale.left, y, Math.max(scale.end - scale.left, 0), this.laneHeight - 2);
    }
    this.#paintHeat(scene);
    this.#paintWaiting(scene);
    const row = history.rows.get(selected);
    if (row) this.#paintFollowed(scene, row);
    else paintHint(scene);
  }

  #top(strip) {
    const perLane = this.perLane / this.perStrip;
    return FOLLOWED_HEIGHT + Math.floor(strip / perLane) * this.laneHeight + (strip % perLane) * this.stripHeight;
  }

  #paintNames({ context, palette, gutter }) {
    Object.assign(context, { fillStyle: palette.muted, textAlign: "right", textBaseline: "middle" });
    for (let lane = 0; lane < this.numLanes; lane += 1) {
      const first = lane * this.perLane;
      const y = FOLLOWED_HEIGHT + (lane + 0.5) * this.laneHeight - 0.5;
      context.fillText(nameSeats(first, Math.min(first + this.perLane, this.numSeats)), gutter - 6, y);
    }
    context.fillText("waiting", gutter - 6, this.height - WAITING_HEIGHT / 2);
    context.textAlign = "left";
  }

  /** What the shades say. */
  get hint() {
    const [strip, blue, orange] = this.perStrip > 1
      ? [`${this.perStrip} rows`, "the more of its rows decode", ", orange higher the more of a prompt is computed"]
      : ["a row", "the longer the answer has become", ""];
    return `Each strip is ${strip} of the batch: blue is fuller ${blue}${orange}. Click it to follow its sequence, again for the next.`;
  }

  /** Decode in the shades of `hint`; prefill as high as its share of the budget where a strip is of several rows. */
  #paintHeat({ context, palette, scale, budget }) {
    const perBin = Math.max(Math.ceil(LEAST_BIN / Math.max(scale.columnWidth, 0.01)), 1);
    const numBins = Math.ceil((scale.to - scale.from) / perBin);
    const work = countWork(this.alive, { ...this, from: scale.from, to: scale.to, perBin, numBins });
    const gap = this.perStrip === 1 && this.perLane > 1 && this.stripHeight > 4 ? 1 : 0;
    const full = this.stripHeight - gap;
    const placeOf = (bin) => scale.stop(Math.min(scale.from + bin * perBin, scale.to));
    for (let strip = 0; strip < Math.ceil(this.numSeats / this.perStrip); strip += 1) {
      const [top, places] = [this.#top(strip), [strip * numBins, (strip + 1) * numBins]];
      context.fillStyle = palette.decode;
      for (const [from, to, share] of runs(work.decode.subarray(...places), (heat) => heat / (perBin * this.perStrip))) {
        context.globalAlpha = 0.3 + 0.7 * share;
        context.fillRect(placeOf(from), top, placeOf(to) - placeOf(from), full);
      }
      context.globalAlpha = 1;
      context.fillStyle = palette.prefill;
      for (const [from, to, share] of runs(work.prefill.subarray(...places), (tokens) => Math.sqrt(tokens / (perBin * budget)))) {
        const height = this.perStrip > 1 ? full * share : full;
        context.fillRect(placeOf(from), top + full - height, placeOf(to) - placeOf(from), height);
      }
    }
    for (const { seat, column, isPreempted } of work.marks) {
      if (!isPreempted && this.perStrip > 1) continue;
      context.fillStyle = isPreempted ? palette.preempted : palette.surface;
      context.fillRect(scale.stop(column) - (isPreempted ? 2 : 1), this.#top(Math.floor(seat / this.perStrip)), isPreempted ? 3 : 1.5, full);
    }
  }

  #paintWaiting({ context, palette, scale, history }) {
    const [top, height] = [this.height - WAITING_HEIGHT + 4, WAITING_HEIGHT - 8];
    const counts = scale.edges.map((_, index) => history.column(scale.from + index).waiting);
    const most = Math.max(...counts, 1);
    context.fillStyle = palette.queued;
    scale.edges.forEach(([left, right], index) => {
      const share = counts[index] / most;
      if (share) context.fillRect(left, top + height * (1 - share), Math.max(right - left, 1), height * share);
    });
    context.fillStyle = palette.line;
    context.fillRect(scale.left, top + height, scale.right - scale.left, 1);
  }

  /** Its life at the top, with its name; and where it lies among the others. */
  #paintFollowed(scene, row) {
    const { context, palette, scale } = scene;
    const place = { ...scene, rows: { rowHeight: FOLLOWED_HEIGHT - 8 } };
    paintRowName(place, row, 0);
    paintRow(place, row, 0);
    context.strokeStyle = palette.text;
    for (const { seat, from, to } of stays(row)) {
      const [left, right] = [scale.start(from), scale.stop(Math.min(to ?? scale.to, scale.to))];
      if (to !== null && to <= scale.from) continue;
      const y = this.#top(Math.floor(seat / this.perStrip));
      context.strokeRect(left - 0.5, y - 0.5, Math.max(right - left, 2) + 1, this.stripHeight + 0.5);
    }
  }
}

function isAt({ seat, from, to }, column) {
  return seat !== undefined && from <= column && (to === null || to > column);
}

function nameSeats(first, end) {
  return end - first > 1 ? `rows ${first}–${end - 1}` : `row ${first}`;
}

function paintHint({ context, palette, scale }) {
  Object.assign(context, { fillStyle: palette.muted, textBaseline: "middle" });
  context.fillText(NOBODY_FOLLOWED, scale.left + 4, FOLLOWED_HEIGHT / 2 - 3);
}

/** Bins [from, to) that look alike, each with its share in [0, 1]; where there is nothing, there is none. */
function* runs(values, shareOf) {
  const levels = Array.from(values, (value) => Math.ceil(LEVELS * Math.min(shareOf(value), 1) - 1e-6));
  for (let bin = 0; bin < levels.length; ) {
    const [from, level] = [bin, levels[bin]];
    while (levels[bin] === level) bin += 1;
    if (level) yield [from, bin, level / LEVELS];
  }
}

/** Of each strip and each bin of columns: tokens prefilled, rows that decode; and where rows were given back. */
function countWork(alive, { from, to, perBin, numBins, numSeats, perStrip }) {
  const size = numBins * Math.ceil(numSeats / perStrip);
  const [prefill, decode, marks] = [new Float32Array(size), new Float32Array(size), []];
  for (const row of alive) {
    let numDecoded = 0;
    const most = Math.max(row.maxTotal - row.numPrompt, 1);
    for (const span of row.spans) {
      const place = Math.floor(span.seat / perStrip) * numBins;
      if (span.kind === "chunk" && span.from >= from && span.from < to) {
        prefill[place + Math.floor((span.from - from) / perBin)] += span.length;
      } else if (span.kind === "decode") {
        const end = Math.min(span.to ?? to, to);
        for (let column = Math.max(span.from, from); column < end; column += 1) {
          const heat = perStrip > 1 ? 1 : LEAST_HEAT + ((1 - LEAST_HEAT) * (numDecoded + column - span.from)) / most;
          decode[place + Math.floor((column - from) / perBin)] += heat;
        }
        numDecoded += end - span.from;
      }
    }
    for (const { seat, to: column, isPreempted } of stays(row)) {
      if (column !== null && column > from && column <= to) marks.push({ seat, column, isPreempted });
    }
  }
  return { prefill, decode, marks };
}

/** The rows of the batch that a sequence has had: which, from which column, to which one, and whether it had to give it back. */
function stays(row) {
  const found = [];
  for (const { seat, from, to, kind } of row.spans) {
    const last = found.at(-1);
    if (seat === undefined) {
      if (last && kind === "preempted") last.isPreempted = true;
    } else if (last?.seat === seat && !last.isPreempted) last.to = to;
    else found.push({ seat, from, to, isPreempted: false });
  }
  return found;
}
