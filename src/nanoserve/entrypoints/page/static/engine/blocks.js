// The block map: every block of the KV cache as a cell, one map for each cache group.

import { BlockBooks } from "./block_books.js";
import { describeBlock } from "./block_facts.js";
import { BlockLayout } from "./block_layout.js";
import { paintBlocks } from "./block_paint.js";
import { announceKeys, fillTable, formatNumber, make, makeTable, sequenceName, setText } from "./dom.js";
import { makeBlockLegend } from "./legends.js";
import { Surface } from "./surface.js";

const LEAST_DRAWN = 128;
const SPARE_ROOM = 1.1;
const KINDS = { full: "full attention", latent: "latent attention", recurrent: "recurrent states" };

export class BlockMaps {
  constructor(view) {
    this.view = view;
    this.maps = [];
    this.facts = make("div", { class: "engine-facts", id: "engine-block-facts" });
    const headings = ["Sequence", "Group", "Findable blocks at its start", "Block table (– fell behind the window)"];
    this.table = makeTable("Block map as a table", "Block tables", headings, () => view.invalidate());
    this.place = make("div", { class: "engine-maps" });
    const title = make("h2", { text: "KV blocks" });
    const parts = [title, makeBlockLegend(), this.place, this.facts, this.table.element];
    this.element = make("section", { class: "engine-panel engine-blocks", "aria-label": "KV blocks" }, ...parts);
    this.#tellOf(null);
  }

  /** Another engine: as many maps as it has cache groups. */
  setHeader(header) {
    for (const map of this.maps) map.destroy();
    this.maps = header.windows.map((_, group) => new BlockMap(this, group, header));
    this.place.replaceChildren(...this.maps.map(({ element }) => element));
  }

  draw() {
    for (const map of this.maps) map.draw();
    const active = this.maps.find(({ cursor }) => cursor !== null) ?? null;
    this.#tellOf(active);
    if (this.table.element.open) this.#fillTable();
  }

  destroy() {
    for (const map of this.maps) map.destroy();
  }

  #tellOf(map) {
    if (!map?.books) {
      this.view.tell(this.facts, ["Point at a block, or move to it with the arrow keys, to see who holds it."]);
      return;
    }
    const { books, cursor, blockSize } = map;
    const { log, player, selectedKey } = this.view;
    const stamp = `${map.group} ${cursor} ${player.position} ${selectedKey}`;
    if (this.facts.dataset.stamp === stamp) return;
    this.facts.dataset.stamp = stamp;
    const readWords = (owner, start, end) => log.words.read(this.view.idOf(owner.key), start, end);
    const about = { books, block: cursor, blockSize, chosen: selectedKey, readWords };
    this.facts.replaceChildren(...describeBlock(about));
  }

  #fillTable() {
    const { replay } = this.view.player;
    const rows = [];
    for (const sequence of replay.sequences.values()) {
      sequence.tables.forEach((table, group) => {
        const blocks = table.map((block) => block || "–").join(" ");
        if (table.length) rows.push([sequenceName(sequence), group, sequence.numShared, blocks]);
      });
      for (const [group, live, snapshot] of sequence.states) {
        const held = snapshot ? `state ${live}, snapshot ${snapshot}` : `state ${live}`;
        rows.push([sequenceName(sequence), group, sequence.numShared, held]);
      }
    }
    fillTable(this.table.body, rows.slice(0, 500));
  }
}

class BlockMap {
  constructor(maps, group, header) {
    const numBlocks = header.pools?.[group] ?? header.num_blocks;
    /** Of all blocks, those that are drawn: the first ones, as long as no other was ever used. */
    this.numDrawn = Math.min(LEAST_DRAWN, numBlocks);
    Object.assign(this, { maps, group, numBlocks, blockSize: header.block_size, cursor: null, books: null });
    const window = header.windows[group] ?? null;
    const kind = header.kinds?.[group] ?? "full";
    this.isRecurrent = kind === "recurrent";
    this.kind = window === null ? (KINDS[kind] ?? kind) : `window of ${window} tokens`;
    this.summary = make("p", { class: "engine-note", id: `engine-blocks-${group}` });
    this.canvas = make("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "block map",
      "aria-label": `Block map of cache group ${group}. Arrow keys choose a block, Enter the sequence that holds it.`,
      "aria-describedby": `engine-blocks-${group} engine-block-facts`,
    });
    const picture = make("div", { class: "engine-picture" }, this.canvas);
    this.element = make("div", { class: "engine-map" }, this.summary, picture);
    this.surface = new Surface(this.canvas, maps.view.invalidate);
    this.#listen();
    announceKeys(this.canvas, maps.facts);
  }

  draw() {
    const { view, maps } = this.maps;
    const { surface, numBlocks } = this;
    if (!surface.width) return;
    const height = surface.width < 370 ? 300 : 360;
    this.#makeRoom(view.player.replay);
    this.layout = new BlockLayout(this.numDrawn, surface.width, height / Math.min(maps.length, 2));
    this.books = new BlockBooks(view.player.replay, this.group, numBlocks, this.blockSize);
    const context = surface.clear(this.layout.height + 3);
    context.translate(1.5, 1.5);
    const { palette, selectedKey } = view;
    const { layout, books, cursor } = this;
    const lookOf = (key) => view.lookOf(key);
    paintBlocks({ context, palette, layout, books, lookOf, chosen: selectedKey, cursor });
    setText(this.summary, this.#summarize());
  }

  destroy() {
    this.surface.destroy();
  }

  /** Draw twice as many blocks as before, until there is room for all that are in use. */
  #makeRoom({ references, findable }) {
    let highest = 0;
    for (const block of references[this.group]?.keys() ?? []) highest = Math.max(highest, block);
    for (const block of findable[this.group] ?? []) highest = Math.max(highest, block);
    while (this.numDrawn < Math.min(highest * SPARE_ROOM, this.numBlocks)) this.numDrawn *= 2;
    this.numDrawn = Math.min(this.numDrawn, this.numBlocks);
  }

  #summarize() {
    const { held, shared, cached, free } = this.books.count(this.numBlocks);
    const name = this.maps.maps.length > 1 || this.isRecurrent ? `Group ${this.group}, ${this.kind}: ` : "";
    const cells = this.layout.perCell > 1 ? ` Each cell stands for ${this.layout.perCell} blocks.` : "";
    const inUse = `${formatNumber(held)} held (${formatNumber(shared)} shared)`;
    const rest = `${formatNumber(cached)} cached and free, ${formatNumber(free)} empty`;
    const all = this.isRecurrent
      ? `${formatNumber(this.numBlocks)} states`
      : `${formatNumber(this.numBlocks)} × ${this.blockSize} tokens`;
    const part = this.numDrawn < this.numBlocks ? ` The first ${formatNumber(this.numDrawn)} are drawn, the others were never used.` : "";
    return `${name}${inUse}, ${rest}, of ${all}.${part}${cells}`;
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.#moveTo(this.#blockAt(event)));
    canvas.addEventListener("pointerleave", () => this.#moveTo(null));
    canvas.addEventListener("blur", () => this.#moveTo(null));
    canvas.addEventListener("click", (event) => {
      this.#moveTo(this.#blockAt(event));
      this.#choose();
    });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #blockAt(event) {
    const { x, y } = this.surface.locate(event);
    return this.layout?.blockAt(x - 1.5, y - 1.5) ?? null;
  }

  #moveTo(block) {
    for (const map of this.maps.maps) map.cursor = null;
    this.cursor = block;
    this.maps.view.touch(this.maps);
  }

  /** Choose a sequence that holds the block; once more, and the next one is chosen. */
  #choose() {
    const { view } = this.maps;
    const owners = this.cursor === null ? [] : this.books.owners(this.cursor).map(({ key }) => key);
    const next = owners[owners.indexOf(view.selectedKey) + 1] ?? null;
    view.select(next === null ? null : view.idOf(next));
  }

  #key(event) {
    if (!this.layout || event.ctrlKey || event.metaKey || event.altKey) return;
    const { columns, perCell } = this.layout;
    const strides = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const ends = { Home: 1, End: this.numDrawn };
    if (event.key in strides) this.#stride(strides[event.key] * perCell);
    else if (event.key in ends) this.#moveTo(ends[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.#choose();
    else if (event.key === "Escape") this.maps.view.select(null);
    else return;
    event.preventDefault();
  }

  #stride(by) {
    const to = this.cursor === null ? 1 : this.cursor + by;
    if (to >= 1 && to <= this.numDrawn) this.#moveTo(to);
  }
}
