// Pointer and keyboard on the timeline: a cursor over the steps, and a sequence that is chosen.

export class TimelineKeys {
  constructor(timeline) {
    this.timeline = timeline;
    const { canvas } = timeline;
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("click", (event) => this.#click(event));
    canvas.addEventListener("dblclick", () => this.#go());
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #hover(event) {
    const { timeline } = this;
    const { x, y } = timeline.surface.locate(event);
    timeline.cursor = timeline.scale?.columnAt(x) ?? null;
    timeline.hovered = y < timeline.rowsHeight ? (timeline.rows.at(y)?.id ?? null) : null;
    timeline.view.touch(timeline);
  }

  #leave() {
    Object.assign(this.timeline, { cursor: null, hovered: null });
    this.timeline.view.touch(this.timeline);
  }

  #click(event) {
    const { timeline } = this;
    this.#hover(event);
    const { y } = timeline.surface.locate(event);
    const row = y < timeline.rowsHeight ? timeline.rows.at(y) : null;
    timeline.view.select(row && row.id !== timeline.view.selected ? row.id : null);
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
      const from = timeline.cursor ?? scale.to;
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
    const { rows, view } = this.timeline;
    const index = rows.drawn.findIndex(({ row }) => row.id === view.selected);
    const next = index < 0 ? (by > 0 ? 0 : rows.drawn.length - 1) : index + by;
    const chosen = rows.drawn[Math.min(Math.max(next, 0), rows.drawn.length - 1)];
    view.select(chosen?.row.id ?? null);
  }
}
