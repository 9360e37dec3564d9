// Which steps the timeline shows: the last ones while the engine is followed, else a part that can be moved and zoomed.

const ZOOMS = [20, 40, 80, 120, 160, 240, 320, 640, 1280];

export class TimelineWindow {
  #end = null;
  #now = 0;
  #shown = { from: 0, to: 0, first: 0, next: 0 };

  /** `zoom`: how many columns are shown. */
  constructor(zoom) {
    this.zoom = zoom;
  }

  /**
   * The columns [from, to) to show of [first, next), of which those below `now` are in the past; `follows`: the present
   * stays at the end. Where the present has moved out of sight, it comes back into it.
   */
  range({ first, next, now, follows }) {
    const isLost = now !== this.#now && (now > this.#end || now <= this.#end - this.zoom);
    if (follows || (this.#end !== null && isLost)) this.#end = null;
    this.#now = now;
    const to = follows ? now : Math.min(Math.max(this.#end ?? now, first + this.zoom), next);
    this.#shown = { from: Math.max(to - this.zoom, first), to, first, next };
    return this.#shown;
  }

  /** Move by some columns, as far as there are any. */
  pan(columns) {
    this.#end = Math.min(Math.max(this.#shown.to + columns, this.#shown.first + this.zoom), this.#shown.next);
  }

  /** Let a column and some that follow it be in sight. */
  lookAt(column) {
    this.#end = column + Math.ceil(this.zoom / 4);
  }

  /** Show fewer columns (-1) or more (1); a column that is given keeps its place. False where that is not possible. */
  zoomBy(direction, column = null) {
    const before = this.zoom;
    this.zoom = ZOOMS[Math.min(Math.max(ZOOMS.indexOf(before) + direction, 0), ZOOMS.length - 1)];
    if (column !== null) this.#end = Math.round(column + ((this.#shown.to - column) * this.zoom) / before);
    return this.zoom !== before;
  }
}
