// The records of a step log with all that is drawn from them, and checkpoints to come back to any of them quickly.
//
// Records go by their serial, the number of their arrival. The oldest are dropped where there is a limit.

import { History } from "./history.js";
import { Replay } from "./replay.js";
import { Words } from "./words.js";

const CHECKPOINT_EVERY = 256;

export class TraceLog {
  #head = new Replay();
  #records = [];
  #columnsAfter = [];
  #checkpoints = [];

  /** `limit`: how many records are kept, about. `every`: how many lie between two checkpoints. */
  constructor(limit = Infinity, every = CHECKPOINT_EVERY) {
    this.limit = limit;
    this.every = every;
    this.first = 0;
    this.history = new History();
    this.words = new Words();
  }

  /** The serial that the next record will have. */
  get end() {
    return this.first + this.#records.length;
  }

  /** The books at the end. */
  get head() {
    return this.#head;
  }

  append(records) {
    for (const record of records) this.#add(record);
    const excess = this.#records.length - this.limit;
    if (excess > this.limit / 8) this.#drop(this.first + excess);
  }

  record(serial) {
    return this.#records[serial - this.first];
  }

  /** How many columns there are after a number of records. */
  columnsAt(position) {
    return this.#columnsAfter[position - 1 - this.first] ?? this.history.first;
  }

  /** The first position at which a column is there. */
  positionOf(column) {
    let [low, high] = [0, this.#columnsAfter.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#columnsAfter[middle] > column) high = middle;
      else low = middle + 1;
    }
    return this.first + low + 1;
  }

  /** The newest checkpoint that is not after a position. */
  checkpointBefore(position) {
    return this.#checkpoints.findLast((each) => each.position <= position) ?? this.#checkpoints[0];
  }

  #add(record) {
    const serial = this.end;
    if (serial % this.every === 0) this.#checkpoints.push({ position: serial, state: this.#head.checkpoint() });
    const wasIdle = this.#head.sequences.size === 0;
    this.#head.apply(record);
    this.history.apply(record, serial, this.#head, wasIdle);
    if (record[0] === "turn") this.words.add(record, (key) => this.history.idOf(key));
    else if (record[0] === "snapshot") this.words.break();
    this.#records.push(record);
    this.#columnsAfter.push(this.history.next);
  }

  #drop(serial) {
    const { position } = this.checkpointBefore(serial);
    const count = position - this.first;
    if (count <= 0) return;
    this.history.drop(this.#columnsAfter[count - 1]);
    this.words.keep((id) => this.history.rows.has(id));
    this.#records.splice(0, count);
    this.#columnsAfter.splice(0, count);
    this.#checkpoints = this.#checkpoints.filter((each) => each.position >= position);
    this.first = position;
  }
}
