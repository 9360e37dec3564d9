// The engine view of the page: what the engine did in its last steps and who holds its blocks, live or recorded.

import { Attention } from "./attention.js";
import { Banner } from "./banner.js";
import { BlockHistory } from "./block_history.js";
import { BlockMaps } from "./blocks.js";
import { Charts } from "./charts.js";
import { formatCount, make } from "./dom.js";
import { OwnRequests } from "./own_requests.js";
import { Palette } from "./palette.js";
import { Player } from "./player.js";
import { PlayerControls } from "./player_controls.js";
import { Queue } from "./queue.js";
import { SamplesButton } from "./samples_button.js";
import { Timeline } from "./timeline.js";
import { TraceLog } from "./trace_log.js";

const LIVE_RECORDS = 8000; // turns: minutes of an engine that makes fifty steps a second, in some thirty megabytes
const CHECKPOINTS = 100;
const WHOLE_SHARE = 0.38; // of the window, for the rows of a whole recording

/**
 * Show an engine inside of an element.
 * @param {Element} element which the view fills.
 * @param {{header: ?object, records?: Array[], subscribe?: Function}} source a recording, or the records as they come:
 *   `subscribe(onRecords, onStatus, onHeader, onConnection)` returns what ends it.
 * @param {{whole?: boolean, sendSamples?: ?function(): Promise}} options `whole`: a recording as one picture of all its
 *   steps, with nothing to be pressed. `sendSamples`: what the button does that fills an idle engine.
 * @returns {{replay: Replay, player: Player, requests: OwnRequests, destroy: Function}} the books that are shown now, what
 *   moves them, and what the page asks of its own requests; it is also the element's `view`, for scripts.
 */
export function mountEngineView(element, source, { whole = false, sendSamples = null } = {}) {
  const view = new EngineView(element, source, { whole, sendSamples });
  element.view = {
    get replay() {
      return view.player.replay;
    },
    player: view.player,
    requests: view.requests,
    timeline: view.timeline,
    get selected() {
      return view.selected;
    },
    blocks: view.blocks,
    destroy: () => view.destroy(),
  };
  return element.view;
}

class EngineView {
  #frame = null;
  #stale = new Set();

  constructor(element, source, options) {
    const isLive = !source.records;
    this.invalidate = this.invalidate.bind(this);
    this.parts = [];
    this.header = null;
    this.status = null;
    this.connection = isLive ? "connecting" : null;
    this.selected = null;
    this.motion = matchMedia("(prefers-reduced-motion: reduce)");
    const every = isLive ? undefined : Math.max(64, Math.ceil(source.records.length / CHECKPOINTS));
    this.log = new TraceLog(isLive ? LIVE_RECORDS : Infinity, every);
    this.player = new Player(this.log, { isLive, onChange: this.invalidate });
    this.requests = new OwnRequests(this);
    this.source = isLive ? source : null;
    this.#build(element, options);
    if (source.header) this.#takeHeader(source.header);
    if (isLive) this.#follow();
    else this.#open(source.records, options.whole);
  }

  /** Draw everything at the next frame; what nobody sees is drawn when it is shown again, at its surfaces' new width. */
  invalidate() {
    this.touch(...this.parts);
  }

  /** Draw some parts at the next frame. */
  touch(...parts) {
    for (const part of parts) this.#stale.add(part);
    if (this.attention.isThere) this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  /** Choose a row, everywhere; null chooses none. */
  select(id) {
    this.selected = id;
    this.invalidate();
  }

  /** The key of the chosen sequence, where its engine is the one that is shown. */
  get selectedKey() {
    const row = this.log.history.rows.get(this.selected);
    return row && this.idOf(row.key) === row.id ? row.key : null;
  }

  /** Whether nothing is to glide. */
  get isStill() {
    return this.motion.matches;
  }

  /** The time that is shown, on the clock of the history. */
  get now() {
    const { history } = this.log;
    return this.player.isAtEnd ? history.at : (history.column(this.player.numColumns - 1)?.at ?? history.at);
  }

  /** The row's id of a key in the books that are shown. */
  idOf(key) {
    const { history } = this.log;
    const epoch = history.column(this.player.numColumns - 1)?.epoch ?? history.columns[0]?.epoch ?? history.epoch;
    return `${epoch}:${key}`;
  }

  /** The look of a sequence in the books that are shown; null as long as it has held no blocks. */
  lookOf(key) {
    return this.log.history.rows.get(this.idOf(key))?.look ?? null;
  }

  /** Lines of text into a panel, where they have changed. */
  tell(panel, lines) {
    const stamp = lines.join("\n");
    if (panel.dataset.stamp === stamp) return;
    panel.dataset.stamp = stamp;
    panel.replaceChildren(...lines.map((text) => make("p", { text })));
  }

  /** What is shown, in one sentence. */
  summarize() {
    const { replay } = this.player;
    const { running, waiting, preempted } = replay.countPhases();
    const held = replay.references.map((_, group) => replay.countHeld(group));
    return `Step ${replay.step}: ${running} running, ${waiting + preempted} waiting, ${formatCount(Math.max(...held, 0), "block")} held.`;
  }

  destroy() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.unsubscribe?.();
    this.attention.destroy();
    this.player.destroy();
    for (const part of [this.timeline, this.blocks, this.charts, this.palette]) part.destroy();
    this.root.remove();
  }

  #build(element, { whole, sendSamples }) {
    this.root = make("div", { class: "engine-view" });
    element.append(this.root);
    this.attention = new Attention(this.root, { onLook: () => this.#comeBack(), onLeave: () => this.#leave() });
    this.palette = new Palette(this.root, this.invalidate);
    this.timeline = new Timeline(this);
    this.blocks = whole ? new BlockHistory(this) : new BlockMaps(this);
    this.charts = new Charts(this);
    if (whole) {
      this.timeline.window.zoom = Infinity;
      this.timeline.mostHeight = outerHeight * WHOLE_SHARE;
    }
    const controls = whole ? [] : [new PlayerControls(this)];
    const samples = sendSamples ? [new SamplesButton(this, sendSamples)] : [];
    this.parts = [new Banner(this), ...samples, ...controls, this.charts, this.timeline, this.blocks];
    if (!whole) this.parts.push(new Queue(this));
    this.root.append(...this.parts.map((part) => part.element));
  }

  #draw() {
    this.#frame = null;
    if (!this.attention.isThere) return;
    const parts = [...this.#stale];
    this.#stale.clear();
    for (const part of parts) part.draw();
  }

  #takeHeader(header) {
    const isSame = JSON.stringify(header) === JSON.stringify(this.header);
    this.header = header;
    if (!isSame) this.blocks.setHeader(header);
    this.invalidate();
  }

  /** Show a recording where the most blocks are held, and a whole one at its end. */
  #open(records, whole) {
    this.log.append(records);
    const held = (column) => Math.max(...column.held, 0);
    const { columns } = this.log.history;
    const fullest = columns.reduce((best, column) => (held(column) > held(best) ? column : best), columns[0]);
    if (whole || !fullest) this.player.seek(this.log.end);
    else this.player.open(this.log.positionOf(fullest.number));
    if (fullest) this.timeline.window.lookAt(fullest.number);
  }

  /** Take the records as they come; the first of them is a snapshot. */
  #follow() {
    const onRecords = (records) => {
      this.log.append(records);
      this.player.follow();
      this.requests.tell();
    };
    const onStatus = (status) => {
      this.status = status;
      this.invalidate();
    };
    const onConnection = (connection) => {
      this.connection = connection;
      if (connection === "live") this.attention.awaitLook(); // a key may have come while the page was hidden
      this.invalidate();
    };
    const onHeader = (header) => this.#takeHeader(header);
    this.unsubscribe = this.source.subscribe(onRecords, onStatus, onHeader, onConnection);
  }

  #comeBack() {
    if (this.source && !this.unsubscribe) this.#follow();
    this.invalidate();
  }

  /** Stop listening; what is shown stays. Who was refused is being asked for a key, and not to be asked once more. */
  #leave() {
    if (this.connection === "refused") return;
    this.unsubscribe?.();
    this.unsubscribe = null;
  }
}
