// Where each sequence has its row on the timeline: in the order of arrival, sliding up as the oldest leave.

import { paintRows } from "./timeline_paint.js";

const LEAST_HEIGHT = 4;
const MOST_HEIGHT = 24;
const LONGEST_GLIDE = 100;

export class TimelineRows {
  #places = new Map();

  constructor() {
    /** Those that are drawn: {row, y}. */
    this.drawn = [];
    this.rowHeight = MOST_HEIGHT;
    this.height = 0;
    this.isMoving = false;
  }

  /** A row for each of the sequences. */
  arrange(alive, { height, glide }) {
    this.rowHeight = Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, height / Math.max(alive.length, 1)));
    this.height = alive.length * this.rowHeight;
    this.#move(alive, glide);
  }

  /** All sequences, from top to bottom; with a place, the one that is there. */
  at(_, y = null) {
    return this.drawn.filter((each) => y === null || (y >= each.y && y < each.y + this.rowHeight)).map(({ row }) => row);
  }

  paint(scene) {
    paintRows({ ...scene, rows: this });
  }

  #move(rows, glide) {
    const places = new Map();
    this.isMoving = false;
    this.drawn = rows.map((row, index) => {
      const target = index * this.rowHeight;
      const old = this.#places.get(row.id) ?? target;
      const way = Math.abs(target - old);
      const isFar = glide && way > 0.5 && way < LONGEST_GLIDE;
      const y = isFar ? old + (target - old) * 0.25 : target;
      this.isMoving ||= isFar;
      places.set(row.id, y);
      return { row, y };
    });
    this.#places = places;
  }
}

/** The sequences that live somewhere in the columns [from, to), at a position of the log. */
export function aliveRows(history, { from, to, position }) {
  const isThere = (row) => row.serial < position && row.born <= to && (row.endedSerial >= position || row.endedColumn > from);
  return [...history.rows.values()].filter(isThere);
}
