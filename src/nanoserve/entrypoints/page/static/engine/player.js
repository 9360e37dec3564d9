// Where in the log the view is: playing, paused, or stepped to; for a live log, following its end.

import { Replay } from "./replay.js";

export const SPEEDS = [1, 2, 5, 10, 25, 60, 250];
const PAUSED_ROOM = 4;

export class Player {
  #opened = null;
  #last = null;
  #frame = null;
  #due = 0;

  /** `onChange` is called after every move. */
  constructor(log, { isLive = false, onChange = () => {} } = {}) {
    this.log = log;
    this.isLive = isLive;
    this.onChange = onChange;
    this.replay = new Replay();
    /** How many records have been applied. */
    this.position = 0;
    this.isPlaying = isLive;
    /** Turns per second, for recordings. */
    this.speed = 10;
    this.liveLimit = log.limit;
  }

  /** How many columns of the history are in the past. */
  get numColumns() {
    return this.log.columnsAt(this.position);
  }

  get isAtEnd() {
    return this.position >= this.log.end;
  }

  /** The log has grown. */
  follow() {
    if (this.isLive && this.isPlaying) this.seek(this.log.end);
    else this.onChange();
  }

  /** Go to where so many records have been applied; at least one, since the first is a snapshot. */
  seek(position) {
    const target = Math.min(Math.max(position, this.log.first + 1), this.log.end);
    const checkpoint = this.log.checkpointBefore(target);
    if (!checkpoint || target < 1) return;
    if (target < this.position || this.position < checkpoint.position) {
      this.replay.restore(checkpoint.state);
      this.position = checkpoint.position;
    }
    for (; this.position < target; this.position += 1) this.replay.apply(this.log.record(this.position));
    this.onChange();
  }

  /** Show a recording at a position; it is played from its start, nevertheless. */
  open(position) {
    this.seek(position);
    this.#opened = this.position;
  }

  /** Pause, and go on or back by some records. */
  step(count) {
    this.pause();
    this.seek(this.position + count);
  }

  /** Pause where a column has just been planned. */
  seekColumn(column) {
    this.pause();
    this.seek(this.log.positionOf(column));
  }

  toStart() {
    this.pause();
    this.seek(0);
  }

  toEnd() {
    this.pause();
    this.seek(this.log.end);
  }

  play() {
    if (this.isPlaying) return;
    this.isPlaying = true;
    this.log.limit = this.liveLimit;
    if (this.isLive) {
      this.seek(this.log.end);
      return;
    }
    if (this.isAtEnd || this.position === this.#opened) this.seek(0);
    this.#opened = null;
    [this.#last, this.#due] = [null, 0];
    this.#frame = requestAnimationFrame((now) => this.#advance(now));
    this.onChange();
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    if (this.isLive) this.log.limit = this.liveLimit * PAUSED_ROOM;
    cancelAnimationFrame(this.#frame);
    this.onChange();
  }

  destroy() {
    this.isPlaying = false;
    cancelAnimationFrame(this.#frame);
  }

  #advance(now) {
    this.#due += this.#last === null ? 0 : (this.speed * Math.min(now - this.#last, 250)) / 1000;
    this.#last = now;
    const count = Math.floor(this.#due);
    this.#due -= count;
    if (count) this.seek(this.position + count);
    if (this.isAtEnd) this.pause();
    else if (this.isPlaying) this.#frame = requestAnimationFrame((then) => this.#advance(then));
  }
}
