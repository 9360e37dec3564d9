// The timeline: a row for every sequence over the last steps, and under it what each step was made of.

import { paintAxis, paintBatches } from "./batch_paint.js";
import { announceKeys, fillTable, listNames, make, makeTable, sequenceName, setText } from "./dom.js";
import { describePart, describeRow, describeStep } from "./step_facts.js";
import { Surface } from "./surface.js";
import { makeTimelineLegend } from "./legends.js";
import { TimelineCrowd } from "./timeline_crowd.js";
import { TimelineKeys } from "./timeline_keys.js";
import { paintNothing, paintVeil, shorten } from "./timeline_paint.js";
import { aliveRows, TimelineRows } from "./timeline_rows.js";
import { TimelineScale } from "./timeline_scale.js";
import { TimelineWindow } from "./timeline_window.js";

const LEAST_ROWS_HEIGHT = 120;
const MOST_ROWS_HEIGHT = 300;
const CROWD = [20, 24]; // sequences: where rows come back, and to where they suffice
const HINT = "Drag to move, wheel to zoom. Click a row to follow its sequence; double-click a step to go there.";
const NOTHING_YET = "Nothing has run since this page was opened; each request will have a row here.";
const LEAST_ROOM = 40; // steps that share the width where fewer are there
const AXIS_HEIGHT = 18;
const LEAST_BATCH_HEIGHT = 78;
const USUAL_HEIGHT = 320; // of rows and batches together, where few rows leave room

export class Timeline {
  constructor(view) {
    this.view = view;
    this.crowd = new TimelineCrowd();
    /** What is drawn: a row for each sequence, or a crowd. */
    this.rows = this.plain = new TimelineRows();
    this.window = new TimelineWindow(matchMedia("(max-width: 40rem)").matches ? 40 : 120);
    /** Pixels of all rows at most; null leaves it to the width. */
    this.mostHeight = null;
    this.byTime = false;
    this.cursor = null;
    /** The sequences under the pointer, and where it is. */
    this.hovered = [];
    this.hoveredAt = 0;
    this.rowsHeight = LEAST_ROWS_HEIGHT;
    this.#build();
    this.surface = new Surface(this.canvas, view.invalidate);
    this.keys = new TimelineKeys(this);
    announceKeys(this.canvas, this.facts);
  }

  draw() {
    const { view, surface } = this;
    const isNarrow = surface.width < 560;
    this.gutter = isNarrow ? 76 : 136;
    const most = this.mostHeight ?? MOST_ROWS_HEIGHT;
    this.extent = this.#findExtent();
    const alive = aliveRows(view.log.history, this.extent);
    this.rows = alive.length > CROWD[this.isCrowd ? 0 : 1] ? this.crowd : this.plain;
    this.rows.arrange(alive, { ...this.extent, height: most, glide: !view.isStill });
    this.rowsHeight = this.isCrowd ? this.rows.height : this.#fit(this.rows.height, most);
    this.batchHeight = Math.max(isNarrow ? 0 : USUAL_HEIGHT - this.rowsHeight, LEAST_BATCH_HEIGHT);
    const context = surface.clear(this.rowsHeight + AXIS_HEIGHT + this.batchHeight + 4);
    if (!context) return;
    this.scale = this.#makeScale();
    this.#paint(context);
    this.#tell();
    if (this.rows.isMoving) view.touch(this);
  }

  /** Show more steps (1) or fewer (-1), around a column where the end is not followed; false where that is not possible. */
  changeZoom(direction, column = null) {
    const isPossible = this.window.zoomBy(direction, this.#follows ? null : column);
    this.view.invalidate();
    return isPossible;
  }

  /** Move the picture by some columns; the engine is not followed meanwhile. */
  pan(columns) {
    this.view.player.pause();
    this.window.pan(columns);
    this.view.invalidate();
  }

  /** Let a row be in sight: one that ended before what is shown is gone back to. */
  reveal(row) {
    const { from, to } = this.#findExtent();
    if (row.endedColumn !== null && row.endedColumn <= from) this.view.player.seekColumn(Math.max(row.endedColumn - 1, 0));
    if (row.born >= to) this.window.lookAt(row.born);
  }

  /** The column that the panel tells of: the cursor's, or the newest of the past. */
  get shownColumn() {
    const { from, to } = this.extent;
    const column = this.cursor !== null && this.cursor >= from && this.cursor < to ? this.cursor : this.newest;
    return this.view.log.history.column(column) ?? null;
  }

  /** The last column of the past. */
  get newest() {
    return this.view.player.numColumns - 1;
  }

  get isCrowd() {
    return this.rows === this.crowd;
  }

  get #follows() {
    const { player } = this.view;
    return player.isLive && player.isPlaying;
  }

  destroy() {
    this.surface.destroy();
  }

  /** The columns [from, to) that are drawn, and the position in the log as of which they are; what is to come is veiled. */
  #findExtent() {
    const { player, log } = this.view;
    const { first, next } = log.history;
    const now = player.numColumns;
    const { from, to } = this.window.range({ first, next, now, follows: this.#follows });
    const position = to <= now ? player.position : to === next ? log.end : log.positionOf(to) - 1;
    return { from, to, position };
  }

  /** The height of the rows: it does not shrink for every row that leaves. */
  #fit(needed, most) {
    const height = needed > this.rowsHeight || needed < this.rowsHeight / 2 ? needed : this.rowsHeight;
    return Math.min(Math.max(height, LEAST_ROWS_HEIGHT), most);
  }

  #makeScale() {
    const { history } = this.view.log;
    const { from, to } = this.extent;
    const place = { left: this.gutter, right: this.surface.width - 16, byTime: this.byTime };
    return new TimelineScale({ history, ...this.extent, room: Math.max(to - from, LEAST_ROOM), ...place });
  }

  #paint(context) {
    const { view, rows, scale, gutter, byTime, extent, batchHeight } = this;
    const { palette, log, player, selected } = view;
    const { history } = log;
    const budget = view.header?.max_num_batched_tokens ?? 1;
    const height = this.rowsHeight;
    const scene = { context, palette, scale, history, budget, gutter, selected, byTime };
    const bottom = height + AXIS_HEIGHT;
    if (extent.to === extent.from) {
      paintNothing(scene, (bottom + batchHeight) / 2);
      return;
    }
    this.#paintCursor(scene, bottom + batchHeight);
    const nameOf = (row, width) => shorten(context, sequenceName(row), width);
    const numColumns = Math.max(player.numColumns, extent.to);
    rows.paint({ ...scene, top: 0, height, numColumns, position: extent.position, nameOf });
    paintAxis({ ...scene, y: height + AXIS_HEIGHT / 2 });
    paintBatches({ ...scene, top: bottom, height: batchHeight });
    context.fillStyle = palette.muted;
    context.textAlign = "right";
    context.fillText(byTime ? "time" : "step", gutter - 6, height + AXIS_HEIGHT / 2);
    context.fillText("tokens", gutter - 6, bottom + batchHeight / 2);
    context.textAlign = "left";
    if (player.numColumns < extent.to) paintVeil(scene, player.numColumns, bottom + batchHeight + 1);
  }

  #paintCursor({ context, palette, scale }, height) {
    const column = this.cursor;
    if (column === null || column < scale.from || column >= scale.to) return;
    context.fillStyle = palette.raised;
    context.fillRect(scale.start(column), 0, Math.max(scale.stop(column + 1) - scale.start(column), 2), height);
    context.fillStyle = palette.accent;
    context.fillRect(scale.start(column) - 1, 0, 1, height);
  }

  #tell() {
    const { view, hovered } = this;
    const { position } = this.extent;
    const column = this.shownColumn;
    const budget = view.header?.max_num_batched_tokens ?? 0;
    const nameOf = (key) => {
      const row = view.log.history.rows.get(`${column.epoch}:${key}`);
      return row ? sequenceName(row) : `sequence ${key}`;
    };
    const lines = column ? describeStep(column, budget, nameOf, position) : ["No step yet", ...(view.player.isLive ? [NOTHING_YET] : [])];
    if (this.isCrowd && hovered.length) lines.push(`${this.crowd.nameAt(this.hoveredAt)}: ${listNames(hovered.map(sequenceName), 16)}`);
    const row = hovered.length === 1 ? hovered[0] : view.log.history.rows.get(view.selected);
    view.tell(this.facts, row ? [...lines, ...describeRow(row, position)] : lines);
    setText(this.zoomText, `${this.window.zoom} steps`);
    setText(this.hint, this.isCrowd ? this.crowd.hint : HINT);
    if (this.table.element.open) this.#fillTable();
  }

  #fillTable() {
    const { replay, numColumns } = this.view.player;
    const column = this.view.log.history.column(numColumns - 1);
    const sequences = [...replay.sequences.values()].sort((a, b) => a.key - b.key).slice(0, 500);
    fillTable(
      this.table.body,
      sequences.map((each) => [
        sequenceName(each),
        each.phase,
        describePart(column, each),
        each.numPrompt,
        each.numCached,
        each.numScheduled,
        each.maxTotal,
      ]),
    );
  }

  #build() {
    const button = (label, text, onclick) => make("button", { type: "button", "aria-label": label, text, onclick });
    this.zoomText = make("span", { class: "engine-number" });
    this.timeToggle = make("button", {
      type: "button",
      "aria-pressed": "false",
      text: "By time",
      onclick: () => this.#toggleTime(),
    });
    const tools = make(
      "div",
      { class: "engine-tools", role: "group", "aria-label": "Timeline" },
      button("Show fewer steps", "+", () => this.changeZoom(-1)),
      this.zoomText,
      button("Show more steps", "−", () => this.changeZoom(1)),
      this.timeToggle,
    );
    this.facts = make("div", { class: "engine-facts", id: "engine-step-facts" });
    this.hint = make("p", { class: "engine-note" });
    this.canvas = make("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": "Timeline of steps. Left and right choose a step, up and down a sequence, Enter goes there.",
      "aria-describedby": "engine-step-facts",
    });
    const headings = ["Sequence", "Phase", "In this step", "Prompt", "Cached", "Computed", "At most"];
    this.table = makeTable("Timeline as a table", "Sequences at this step", headings, () => this.view.invalidate());
    const head = make("div", { class: "engine-head" }, make("h2", { text: "Timeline" }), tools);
    const picture = make("div", { class: "engine-picture" }, this.canvas);
    const parts = [head, makeTimelineLegend(), picture, this.hint, this.facts, this.table.element];
    this.element = make("section", { class: "engine-panel engine-timeline", "aria-label": "Timeline" }, ...parts);
  }

  #toggleTime() {
    this.byTime = !this.byTime;
    this.timeToggle.setAttribute("aria-pressed", String(this.byTime));
    this.view.invalidate();
  }
}
