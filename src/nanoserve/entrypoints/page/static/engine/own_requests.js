// A request that the page sent itself: how many wait before it, and its row on the timeline.

export class OwnRequests {
  #listeners = new Set();

  constructor(view) {
    this.view = view;
  }

  /** Where the log ends; a request that is sent now arrives behind it. */
  get mark() {
    return this.view.log.end;
  }

  /** Call back whenever the log has grown; returns what ends that. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The log has grown. */
  tell() {
    for (const listener of this.#listeners) listener();
  }

  /** How many requests wait before the first one that arrived behind a mark; null where it does not wait. */
  countAhead(mark) {
    return countAhead(this.view.log, mark);
  }

  /** Whether the log still has a sequence. */
  has(requestId, index) {
    return this.#find(requestId, index) !== undefined;
  }

  /** Choose the row of a sequence that is there, and bring it into sight. */
  show(requestId, index) {
    const { view } = this;
    const row = this.#find(requestId, index);
    view.select(row.id);
    view.timeline.reveal(row);
    view.timeline.canvas.focus();
  }

  #find(requestId, index) {
    const rows = [...this.view.log.history.rows.values()];
    return rows.findLast((row) => row.requestId === requestId && row.index === index);
  }
}

/** As the method, for a `TraceLog`: those that were preempted wait before those that arrived. */
export function countAhead({ head, history }, mark) {
  const own = [...history.rows.values()].find((row) => row.serial >= mark && row.arrivedAt !== null);
  if (!own || own.id !== history.idOf(own.key) || head.sequences.get(own.key)?.phase !== "waiting") return null;
  const waiting = [...head.sequences.values()].filter(({ phase }) => phase !== "running");
  const ahead = waiting.filter(({ key, phase }) => phase === "preempted" || key < own.key);
  return new Set(ahead.map(({ requestId }) => requestId)).size;
}
