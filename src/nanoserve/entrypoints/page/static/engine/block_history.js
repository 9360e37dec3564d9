// The blocks of the KV cache over all steps of a recording: a line for each block, in the colour of its holder.

import { BlockBooks } from "./block_books.js";
import { formatNumber, make, setText } from "./dom.js";
import { makeHistoryLegend } from "./legends.js";
import { Replay } from "./replay.js";
import { roundUp } from "./ticks.js";
import { Surface } from "./surface.js";

const [FREE, CACHED, SHARED, HELD] = [0, 1, 2, 3]; // from HELD on: the look of the one sequence that holds the block
const LEAST_HEIGHT = 120;
const MARGIN = 34;
const GROUP_GAP = 6;
const SPARE_ROOM = 1.3;

export class BlockHistory {
  /** The cells of every group, by block, after column `number`; null before it was drawn. */
  columns = null;

  constructor(view) {
    this.view = view;
    this.canvas = make("canvas", { role: "img", "aria-label": "Blocks over the steps" });
    this.note = make("p", { class: "engine-note" });
    const title = make("h2", { text: "KV blocks after each step" });
    const picture = make("div", { class: "engine-picture" }, this.canvas);
    this.element = make("section", { class: "engine-panel" }, title, makeHistoryLegend(), this.note, picture);
    this.surface = new Surface(this.canvas, view.invalidate);
  }

  setHeader(header) {
    this.pools = header.windows.map((_, group) => header.pools?.[group] ?? header.num_blocks);
    this.blockSize = header.block_size;
  }

  /** As high as the window has room for, below the timeline and along its scale. */
  draw() {
    const { scale, gutter } = this.view.timeline;
    if (!scale) return;
    this.columns ??= this.#walk(scale);
    const drawn = this.pools.map((size, group) => this.#numDrawn(size, group));
    const unused = this.pools.reduce((sum, size, group) => sum + size - drawn[group], 0);
    setText(this.note, unused ? `${formatNumber(unused)} more blocks were never used.` : "");
    const room = Math.max(innerHeight, outerHeight) - this.canvas.getBoundingClientRect().top - MARGIN;
    const height = Math.max(Math.floor(room), LEAST_HEIGHT);
    const context = this.surface.clear(height);
    if (!context) return;
    const tall = (height - GROUP_GAP * (drawn.length - 1)) / drawn.reduce((sum, each) => sum + each, 0);
    let top = 0;
    drawn.forEach((count, group) => {
      this.#paint(context, { group, count, top, tall, scale, gutter });
      top += count * tall + GROUP_GAP;
    });
  }

  destroy() {
    this.surface.destroy();
  }

  /** The cells of every group after each step that has a place of its own in the picture. */
  #walk(scale) {
    const { log } = this.view;
    const replay = new Replay();
    const columns = [];
    let seen = -Infinity;
    for (let serial = log.first; serial < log.end; serial += 1) {
      replay.apply(log.record(serial));
      const next = log.columnsAt(serial + 1);
      const place = Math.floor(scale.stop(next));
      if (next === scale.from || (place === seen && serial + 1 < log.end)) continue;
      if (columns.at(-1)?.number === next - 1) columns.pop();
      const { epoch } = log.history.column(next - 1);
      const lookOf = (key) => log.history.rows.get(`${epoch}:${key}`)?.look;
      const groups = this.pools.map((size, group) => this.#cells(replay, { size, group, lookOf }));
      columns.push({ number: next - 1, groups });
      seen = place;
    }
    return columns;
  }

  #cells(replay, { size, group, lookOf }) {
    const books = new BlockBooks(replay, group, size, this.blockSize);
    const highest = Math.max(0, ...books.references.keys(), ...books.findable);
    return Uint8Array.from({ length: highest }, (_, index) => {
      const state = books.state(index + 1);
      if (state === "held") return HELD + (lookOf(books.owner[index + 1].key) ?? 0);
      return { free: FREE, cached: CACHED, shared: SHARED }[state];
    });
  }

  /** All blocks, unless many of them were never used. */
  #numDrawn(size, group) {
    const used = Math.max(1, ...this.columns.map(({ groups }) => groups[group].length));
    return used * SPARE_ROOM >= size ? size : used;
  }

  /** Where a block is not free: equal cells behind column `from` (null: from the first on) up to column `to`. */
  #runs(group, block) {
    const runs = [];
    let before = null;
    for (const { groups, number } of this.columns) {
      const cell = groups[group][block] ?? FREE;
      const last = runs.at(-1);
      if (cell !== FREE && last?.cell === cell && last.to === before) last.to = number;
      else if (cell !== FREE) runs.push({ cell, from: before, to: number });
      before = number;
    }
    return runs;
  }

  #paint(context, { group, count, top, tall, scale, gutter }) {
    const { palette } = this.view;
    const paints = { [CACHED]: palette.hatch(context, palette.hit), [SHARED]: palette.text };
    context.fillStyle = palette.free;
    context.fillRect(scale.left, top, scale.end - scale.left, count * tall);
    const gap = tall > 4 ? 1 : 0;
    for (let block = 0; block < count; block += 1) {
      for (const { cell, from, to } of this.#runs(group, block)) {
        const left = from === null ? scale.left : scale.stop(from + 1);
        context.fillStyle = paints[cell] ??= palette.owner(context, cell - HELD);
        context.fillRect(left, top + block * tall, scale.stop(to + 1) - left, Math.max(tall - gap, 0.5));
      }
    }
    context.fillStyle = palette.muted;
    [context.textAlign, context.textBaseline] = ["right", "middle"];
    const every = roundUp(Math.max(count / Math.max(Math.floor((count * tall) / 16), 1), 1));
    for (let block = every; block <= count; block += every) {
      context.fillText(String(block), gutter - 6, Math.max(top + (block - 0.5) * tall, 6));
    }
    context.textAlign = "left";
  }
}
