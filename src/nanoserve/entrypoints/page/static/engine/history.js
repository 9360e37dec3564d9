// What the timeline draws: a column for every planned step, and a row of spans for every sequence.
//
// Columns are numbered through, also over restarts of the engine, whose own steps and keys start anew each time.

import { Looks } from "./looks.js";

/**
 * Part of a row, over the columns [from, to); `to` is null while it goes on.
 * @typedef {{kind: "queued"|"preempted"|"decode"|"chunk", from: number, to: ?number, length?: number, start?: number,
 *   samples?: boolean, cached?: number, seat?: number}} Span  `seat`: the row of the batch, of those that are computed
 */

export class History {
  #numberOfStep = new Map();
  #open = new Map();
  #decoding = [];
  #cached = new Map();
  #seats = new Map();
  #looks = new Looks();
  #lost = false;
  #generated = 0;
  #offset = 0;

  constructor() {
    this.columns = [];
    this.first = 0;
    /** Rows by id, in the order of arrival. */
    this.rows = new Map();
    this.epoch = 0;
    this.at = 0;
  }

  /** The number that the next column will have. */
  get next() {
    return this.first + this.columns.length;
  }

  column(number) {
    return this.columns[number - this.first];
  }

  /** The row of a sequence that lives now. */
  idOf(key) {
    return `${this.epoch}:${key}`;
  }

  /** Go on by one record; `replay` holds the books after it; `wasIdle`: nobody lived before it. */
  apply(record, serial, replay, wasIdle) {
    if (record[0] === "snapshot") this.#restart(record, serial, replay);
    else if (record[0] === "turn") this.#turn(record, serial, replay, wasIdle);
    else this.#lost ||= ["restarting", "starting", "failed", "stopped"].includes(record[2]);
    this.#generated = replay.generatedTokens;
  }

  /** Forget the columns below a number, and the rows that ended before it. */
  drop(number) {
    const dropped = this.columns.splice(0, number - this.first);
    this.first += dropped.length;
    for (const { step } of dropped) this.#numberOfStep.delete(step);
    for (const [id, row] of this.rows) {
      if (row.endedColumn !== null && row.endedColumn <= number) this.rows.delete(id);
      else if (row.spans[0]?.to <= number) row.spans = row.spans.filter(({ to }) => to === null || to > number);
    }
  }

  #restart(snapshot, serial, replay) {
    const [, at, , sequences] = snapshot;
    const isAnother = this.#lost || this.#isStrange(snapshot);
    this.#lost = false;
    if (at + this.#offset < this.at) this.#offset = this.at - at;
    this.at = at + this.#offset;
    if (isAnother) this.#leave(() => true, "restart", serial);
    if (isAnother) this.epoch += 1;
    this.#leave((row) => !replay.sequences.has(row.key), "unknown", serial);
    this.#numberOfStep.clear();
    this.#decoding = [];
    this.#seats.clear();
    for (const [key, requestId, index, numPrompt, maxTotal, phase, seat] of sequences) {
      if (seat !== null) this.#seats.set(key, seat);
      if (!this.rows.has(this.idOf(key))) this.#arrive([key, requestId, index, numPrompt, maxTotal], serial, null);
      this.#close(key);
      if (phase !== "waiting") this.#dress(key);
      if (phase !== "running") this.#begin(key, { kind: phase === "waiting" ? "queued" : "preempted" });
    }
    if (this.columns.length) this.#push({ gap: isAnother ? "restart" : "gap" }, serial, replay);
  }

  /** Whether the engine cannot be the one before: it has done less, or gives somebody else a key that is known. */
  #isStrange([, , step, sequences, , , , generated]) {
    const nameOf = (key) => this.rows.get(this.idOf(key))?.requestId;
    const isOther = ([key, requestId]) => (nameOf(key) ?? requestId) !== requestId;
    return step < (this.columns.at(-1)?.step ?? 0) || generated < this.#generated || sequences.some(isOther);
  }

  #turn([, at, arrived, happened, ended, committed, numGenerated], serial, replay, wasIdle) {
    const plannedAfter = wasIdle ? null : this.at;
    this.at = at + this.#offset;
    for (const arrival of arrived) this.#arrive(arrival, serial, this.at);
    const fresh = { admitted: [], preempted: [] };
    for (const event of happened) {
      if (event[0] === "admit") this.#admit(event, fresh);
      else if (event[0] === "preempt") this.#preempt(event[1], fresh);
      else if (event[0] === "step") this.#step(event, fresh, plannedAfter, serial, replay);
    }
    if (committed !== null) this.#commit(committed, numGenerated, serial, replay);
    for (const [key, reason, count] of ended) this.#end(key, reason, count, serial);
  }

  #arrive([key, requestId, index, numPrompt, maxTotal], serial, arrivedAt) {
    const id = this.idOf(key);
    const fate = { endedColumn: null, endedSerial: Infinity, endedAt: null, reason: null, numGenerated: null };
    const row = { id, key, requestId, index, numPrompt, maxTotal, arrivedAt, firstAt: null, serial, born: this.next, look: null };
    this.rows.set(id, { ...row, ...fate, spans: [] });
    if (arrivedAt !== null) this.#begin(key, { kind: "queued" });
  }

  #admit([, key, seat, cached, resumed], fresh) {
    this.#close(key);
    this.#seats.set(key, seat);
    this.#dress(key);
    this.#cached.set(key, cached);
    fresh.admitted.push({ key, cached, resumed });
  }

  /** Who holds blocks looks like nobody else does, and goes on to look so when it has to give them back for a while. */
  #dress(key) {
    const row = this.rows.get(this.idOf(key));
    if (row) row.look ??= this.#looks.take();
  }

  #preempt(key, fresh) {
    this.#close(key);
    this.#begin(key, { kind: "preempted" });
    this.#decoding = this.#decoding.filter((each) => each !== key);
    fresh.preempted.push(key);
  }

  #step([, step, chunks, decoding], fresh, plannedAfter, serial, replay) {
    const number = this.next;
    for (const [key, start, length, samples] of chunks) {
      const cached = this.#cached.get(key) ?? 0;
      this.#cached.delete(key);
      this.#close(key);
      this.#spans(key)?.push({ kind: "chunk", from: number, to: number + 1, start, length, samples, cached, seat: this.#seats.get(key) });
    }
    if (decoding !== null) this.#changeDecoding(decoding);
    const now = this.#decoding;
    const prefillTokens = chunks.reduce((sum, chunk) => sum + chunk[2], 0);
    const work = { step, chunks, decoding: now, prefillTokens, decodeTokens: now.length, plannedAfter };
    this.#numberOfStep.set(step, number);
    this.#push({ ...work, admitted: fresh.admitted, preempted: fresh.preempted }, serial, replay);
    Object.assign(fresh, { admitted: [], preempted: [] });
  }

  #changeDecoding(decoding) {
    const now = new Set(decoding);
    for (const key of this.#decoding) if (!now.has(key)) this.#close(key);
    for (const key of decoding) {
      if (this.#open.get(key)?.kind !== "decode") this.#begin(key, { kind: "decode", seat: this.#seats.get(key) });
    }
    this.#decoding = decoding;
  }

  #push(column, serial, replay) {
    const { waiting, running, preempted } = replay.countPhases();
    const held = replay.references.map((_, group) => replay.countHeld(group));
    const totals = { preemptions: replay.preemptions, queries: replay.prefixQueries, hits: replay.prefixHits };
    const books = { waiting: waiting + preempted, running, held, ...totals };
    const pending = { startedAt: null, endedAt: null, endedBy: Infinity, numGenerated: 0, ended: [] };
    this.columns.push({ number: this.next, serial, epoch: this.epoch, at: this.at, ...pending, ...books, ...column });
  }

  #commit(step, numGenerated, serial, replay) {
    const column = this.column(this.#numberOfStep.get(step));
    if (!column) return;
    const before = this.column(column.number - 1);
    const startedAt = startOf(column, before);
    Object.assign(column, { startedAt, endedAt: this.at, endedBy: serial, numGenerated });
    Object.assign(column, { preemptions: replay.preemptions, queries: replay.prefixQueries, hits: replay.prefixHits });
    for (const [key, , , samples] of column.chunks) {
      const row = this.rows.get(this.idOf(key));
      if (samples && row) row.firstAt ??= this.at;
    }
  }

  #end(key, reason, count, serial) {
    const row = this.rows.get(this.idOf(key));
    this.#close(key);
    this.#seats.delete(key);
    if (!row) return;
    if (row.look !== null) this.#looks.giveBack(row.look);
    const endedColumn = Math.max(row.spans.at(-1)?.to ?? this.next, row.born);
    Object.assign(row, { reason, endedColumn, endedSerial: serial, endedAt: this.at, numGenerated: count });
    this.columns.at(-1)?.ended.push({ id: row.id, reason });
  }

  #leave(isGone, reason, serial) {
    const gone = [...this.rows.values()].filter((row) => row.reason === null && isGone(row));
    for (const { key } of gone) this.#end(key, reason, null, serial);
  }

  #spans(key) {
    return this.rows.get(this.idOf(key))?.spans;
  }

  #begin(key, span) {
    this.#close(key);
    const begun = { ...span, from: this.next, to: null };
    this.#spans(key)?.push(begun);
    this.#open.set(key, begun);
  }

  #close(key) {
    const span = this.#open.get(key);
    if (!span) return;
    this.#open.delete(key);
    span.to = this.next;
    const spans = this.#spans(key);
    if (span.from === span.to && spans?.at(-1) === span) spans.pop();
  }
}

/** When the device began a step: after the one before; null where it came out of idleness, and nobody knows. */
function startOf(column, before) {
  const wentOn = column.plannedAfter !== null;
  if (!wentOn && before?.serial !== column.serial) return null;
  return Math.max(column.plannedAfter ?? 0, before?.endedAt ?? 0);
}
