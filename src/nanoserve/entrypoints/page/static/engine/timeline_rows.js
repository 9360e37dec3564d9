// Which sequences have a row on the timeline, and where: in the order of arrival, sliding up as the oldest leave.

const LEAST_HEIGHT = 4;
const MOST_HEIGHT = 24;
const LONGEST_GLIDE = 100;

export class TimelineRows {
  #places = new Map();

  constructor() {
    /** Those that are drawn: {row, y}. */
    this.drawn = [];
    this.rowHeight = MOST_HEIGHT;
    this.numHidden = 0;
    this.isMoving = false;
  }

  /** Choose the rows that live somewhere from column `from` on, at a position of the log. */
  arrange(history, { from, position, height, glide }) {
    const isThere = (row) => row.serial < position && (row.endedSerial >= position || row.endedColumn > from);
    const alive = [...history.rows.values()].filter(isThere);
    const room = Math.floor(height / LEAST_HEIGHT);
    const rows = alive.length > room ? pickRows(alive, room, position) : alive;
    this.numHidden = alive.length - rows.length;
    this.rowHeight = Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, height / Math.max(rows.length, 1)));
    this.#move(rows, glide);
  }

  at(y) {
    return this.drawn.find((each) => y >= each.y && y < each.y + this.rowHeight)?.row ?? null;
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

/** Where there is no room for all: who runs first, then who ended last, then who has waited longest. */
function pickRows(rows, room, position) {
  const begun = rows.filter((row) => row.spans.length > 1 || row.spans[0]?.kind !== "queued");
  const living = begun.filter((row) => row.endedSerial >= position);
  const ended = begun.filter((row) => row.endedSerial < position).sort((a, b) => b.endedSerial - a.endedSerial);
  const queued = rows.filter((row) => !begun.includes(row));
  const keptForQueue = Math.min(queued.length, Math.floor(room / 5));
  const kept = new Set([...living.slice(-room), ...ended].slice(0, room - keptForQueue));
  for (const row of queued) if (kept.size < room) kept.add(row);
  return rows.filter((row) => kept.has(row));
}
