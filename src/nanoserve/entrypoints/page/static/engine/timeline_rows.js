// Which sequences have a row on the timeline, and where: in the order of arrival, sliding up as the oldest leave.

const LEAST_HEIGHT = 4;
const MOST_HEIGHT = 24;
const LONGEST_GLIDE = 100;
const QUEUE_SHARE = 5;

/** Whose rows are drawn first, where there is no room for all. */
export const RANKS = { chosen: 0, running: 1, preempted: 2, ended: 3, queued: 4 };

export class TimelineRows {
  #places = new Map();

  constructor() {
    /** Those that are drawn: {row, y}. */
    this.drawn = [];
    this.rowHeight = MOST_HEIGHT;
    this.numHidden = 0;
    this.isMoving = false;
  }

  /** Choose the rows that live somewhere in the columns [from, to), at a position of the log; `rankOf` puts them in order. */
  arrange(history, { from, to, position, height, glide, rankOf }) {
    const isThere = (row) => row.serial < position && row.born <= to && (row.endedSerial >= position || row.endedColumn > from);
    const alive = [...history.rows.values()].filter(isThere);
    const room = Math.floor(height / LEAST_HEIGHT);
    const rows = alive.length > room ? pickRows(alive, room, rankOf) : alive;
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

/** Where there is no room for all: the chosen one and those that run, then who ended last, then who has waited longest. */
function pickRows(rows, room, rankOf) {
  const ranked = rows.map((row) => ({ row, rank: rankOf(row) })).sort((a, b) => a.rank - b.rank || byHaste(a, b));
  const queued = ranked.filter(({ rank }) => rank === RANKS.queued);
  const others = ranked.slice(0, ranked.length - queued.length);
  const numOthers = Math.max(room - queued.length, room - Math.floor(room / QUEUE_SHARE));
  const kept = [...others.slice(0, numOthers), ...queued];
  const drawn = new Set(kept.slice(0, room).map(({ row }) => row));
  return rows.filter((row) => drawn.has(row));
}

function byHaste(a, b) {
  if (a.rank === RANKS.ended) return b.row.endedSerial - a.row.endedSerial;
  return a.row.serial - b.row.serial;
}
