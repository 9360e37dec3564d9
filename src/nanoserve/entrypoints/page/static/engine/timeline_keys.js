// Pointer and keyboard on the timeline: a cursor over the steps, a sequence that is chosen, and what part is shown.

const SLACK = 4; // pixels that a click may move
const NOTCH = 40; // pixels of scrolling for one change
const LINE = 16;

export class TimelineKeys {
  #grip = null;
  #turned = 0;

  constructor(timeline) {
    this.timeline = timeline;
    const { canvas } = timeline;
    canvas.addEventListener("pointerdown", (event) => this.#grab(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointercancel", () => (this.#grip = null));
    canvas.addEventListener("wheel", (event) => this.#turn(event), { passive: false });
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("click", (event) => this.#click(event));
    canvas.addEventListener("dblclick", () => this.#go());
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #hover(event) {
    const { timeline } = this;
    const { x, y } = timeline.surface.locate(event);
    timeline.cursor = timeline.scale?.columnAt(x) ?? null;
    timeline.hovered = y < timeline.rowsHeight ? timeline.rows.at(timeline.cursor ?? timeline.newest, y) : [];
    timeline.hoveredAt = y;
    timeline.view.touch(timeline);
  }

  #grab(event) {
    if (event.button === 0) this.#grip = { x: event.clientX, moved: 0, isDrag: false };
  }

  /** Drag the steps along, or point at one of them. */
  #move(event) {
    const grip = this.#grip;
    if (!grip || !(event.buttons & 1)) {
      this.#hover(event);
      return;
    }
    const way = event.clientX - grip.x;
    if (!grip.isDrag && Math.abs(way) <= SLACK) return;
    grip.isDrag = true;
    this.timeline.canvas.setPointerCapture(event.pointerId);
    const columns = Math.round(way / Math.max(this.timeline.scale?.columnWidth ?? 1, 0.01));
    if (columns === grip.moved) return;
    this.timeline.pan(grip.moved - columns);
    grip.moved = columns;
  }

  /** The wheel zooms, sideways or with Shift it moves; where nothing is left to zoom, the page scrolls. */
  #turn(event) {
    const { timeline } = this;
    if (event.ctrlKey || !timeline.scale) return;
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const turned = (isSideways ? event.deltaX || event.deltaY : event.deltaY) * (event.deltaMode ? LINE : 1);
    this.#turned = Math.sign(turned) === Math.sign(this.#turned) ? this.#turned + turned : turned;
    const isFull = Math.abs(this.#turned) >= NOTCH;
    const direction = Math.sign(turned);
    if (isFull) this.#turned = 0;
    if (isSideways && isFull) timeline.pan(direction * Math.ceil(timeline.window.zoom / 10));
    const column = timeline.scale.columnAt(timeline.surface.locate(event).x);
    const isDone = isSideways || !isFull || timeline.changeZoom(direction, column);
    if (isDone) event.preventDefault();
  }

  #leave() {
    Object.assign(this.timeline, { cursor: null, hovered: [] });
    this.timeline.view.touch(this.timeline);
  }

  #click(event) {
    const { timeline } = this;
    const wasDrag = this.#grip?.isDrag;
    this.#grip = null;
    if (wasDrag) return;
    this.#hover(event);
    const { hovered, view } = timeline;
    const chosen = hovered.findIndex(({ id }) => id === view.selected);
    view.select(hovered[chosen + 1]?.id ?? null);
  }

  /** Let the whole view stand where the cursor is. */
  #go() {
    const { cursor, view } = this.timeline;
    if (cursor !== null) view.player.seekColumn(cursor);
  }

  #key(event) {
    const act = this.#actions()[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
    this.timeline.view.invalidate();
  }

  #actions() {
    const { timeline } = this;
    const { scale } = timeline;
    if (!scale) return {};
    const move = (by) => {
      const from = timeline.cursor ?? timeline.view.player.numColumns;
      timeline.cursor = Math.min(Math.max(from + by, scale.from), scale.to - 1);
    };
    return {
      ArrowLeft: () => move(-1),
      ArrowRight: () => move(1),
      PageUp: () => move(-10),
      PageDown: () => move(10),
      Home: () => move(-Infinity),
      End: () => move(Infinity),
      ArrowUp: () => this.#choose(-1),
      ArrowDown: () => this.#choose(1),
      Enter: () => this.#go(),
      Escape: () => {
        timeline.cursor = null;
        timeline.view.select(null);
      },
      "+": () => timeline.changeZoom(-1),
      "-": () => timeline.changeZoom(1),
    };
  }

  #choose(by) {
    const { rows, view, cursor, newest } = this.timeline;
    const all = rows.at(cursor ?? newest);
    const index = all.findIndex(({ id }) => id === view.selected);
    const next = index < 0 ? (by > 0 ? 0 : all.length - 1) : index + by;
    view.select(all[Math.min(Math.max(next, 0), all.length - 1)]?.id ?? null);
  }
}
