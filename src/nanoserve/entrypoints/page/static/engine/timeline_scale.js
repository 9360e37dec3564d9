// From columns of the history to places on the picture: one width for every step, or one for every second.

export class TimelineScale {
  /** The columns [from, to) of `history` between the places `left` and `right`; `room` is of columns, where `to` is less. */
  constructor({ history, from, to, room, left, right, byTime, position }) {
    Object.assign(this, { from, to, left, right });
    const count = Math.max(to - from, 0);
    const edges = byTime ? timeEdges(history, from, to, position) : null;
    const span = edges ? Math.max(edges.at(-1)?.[1] - edges[0]?.[0], 1e-9) : Math.max(room, 1);
    const zero = edges ? (edges[0]?.[0] ?? 0) : 0;
    /** The place of a time, where the scale is one of time. */
    this.placeOf = (value) => left + ((right - left) * (value - zero)) / span;
    const place = this.placeOf;
    /** The times at both ends, where the scale is one of time. */
    this.times = edges && edges.length ? [zero, zero + span] : null;
    this.edges = Array.from({ length: count }, (_, index) => {
      const [start, end] = edges ? edges[index] : [index, index + 1];
      return [place(start), place(end)];
    });
    this.columnWidth = count ? (this.edges.at(-1)[1] - this.edges[0][0]) / count : right - left;
    this.end = this.edges.at(-1)?.[1] ?? left;
  }

  /** Where a column begins; those that are not there lie at the ends. */
  start(column) {
    if (column <= this.from) return this.left;
    return this.edges[column - this.from]?.[0] ?? this.end;
  }

  /** Where the column before a number ends. */
  stop(column) {
    if (column <= this.from) return this.left;
    return this.edges[column - 1 - this.from]?.[1] ?? this.end;
  }

  /** The column at a place; null where there is none. */
  columnAt(x) {
    const index = this.edges.findIndex(([start, stop]) => x >= start && x < Math.max(stop, start + 1));
    return index < 0 ? null : this.from + index;
  }
}

/** When each column began and ended; one that has not come home yet is guessed to take as long as the one before. */
function timeEdges(history, from, to, position) {
  const edges = [];
  let [before, usual] = [null, 0.001];
  for (let number = from; number < to; number += 1) {
    const column = history.column(number);
    const isHome = column.endedBy < position;
    if (isHome && column.startedAt !== null) usual = column.endedAt - column.startedAt;
    const latest = Math.max(before ?? column.at, column.at);
    const end = isHome ? column.endedAt : column.gap ? latest : latest + usual;
    const start = (isHome ? column.startedAt : before) ?? Math.max(end - usual, before ?? -Infinity);
    edges.push([start, end]);
    before = end;
  }
  return edges;
}
