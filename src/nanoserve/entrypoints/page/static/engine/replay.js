// The books of an engine, rebuilt from its step log: what domain/tracing/replay.py does, record for record.

/**
 * A living sequence.
 * @typedef {{key: number, requestId: string, index: number, numPrompt: number, maxTotal: number, phase: string,
 *   row: ?number, numCached: number, numScheduled: number, numShared: number, tables: number[][],
 *   states: number[][]}} Sequence
 * `states`: of each recurrent group its number, the live state and the newest snapshot (0: none).
 */

export const SINK_BLOCK = 0;

/** An empty snapshot, as the log has them. */
export const EMPTY_SNAPSHOT = ["snapshot", 0, 0, [], [], 0, {}, 0, 0, 0];

export class Replay {
  constructor() {
    this.status = null;
    this.load(EMPTY_SNAPSHOT);
  }

  /** Start at a snapshot; what was known before is forgotten. */
  load(snapshot) {
    const [, at, step, sequences, findable, preemptions, finished, generated, queries, hits] = snapshot;
    this.at = at;
    this.step = step;
    this.committed = 0;
    /** @type {Map<number, Sequence>} */
    this.sequences = new Map();
    this.phases = { waiting: 0, running: 0, preempted: 0 };
    /** Per cache group: how many tables hold each block, or how many sequences each state. */
    this.references = findable.map(() => new Map());
    /** Per cache group: the blocks whose content can be found; one that no table holds is free, and cached. */
    this.findable = findable.map((blocks) => new Set(blocks));
    this.decoding = [];
    this.preemptions = preemptions;
    this.finished = new Map(Object.entries(finished));
    this.generatedTokens = generated;
    this.prefixQueries = queries;
    this.prefixHits = hits;
    for (const fields of sequences) this.#loadSequence(fields);
  }

  /** Go on by one record of the log. */
  apply(record) {
    if (record[0] === "snapshot") this.load(record);
    else if (record[0] === "turn") this.#turn(record);
    else if (record[0] === "status") [, this.at, this.status] = record;
  }

  /** The books now, in the very shape of the log's snapshots. */
  snapshot() {
    const inOrder = (a, b) => a - b;
    const keys = [...this.sequences.keys()].sort(inOrder);
    const sequences = keys.map((key) => sequenceFields(this.sequences.get(key)));
    const findable = this.findable.map((blocks) => [...blocks].sort(inOrder));
    const tally = [this.preemptions, Object.fromEntries(this.finished), this.generatedTokens];
    return ["snapshot", this.at, this.step, sequences, findable, ...tally, this.prefixQueries, this.prefixHits];
  }

  /** All that `restore` needs to come back to this moment. */
  checkpoint() {
    const { decoding, committed, status } = this;
    return { snapshot: this.snapshot(), decoding, committed, status };
  }

  restore({ snapshot, decoding, committed, status }) {
    this.load(snapshot);
    Object.assign(this, { decoding, committed, status });
  }

  /** How many sequences are in each phase. */
  countPhases() {
    return { ...this.phases };
  }

  /** Blocks of a group that some table holds. */
  countHeld(group) {
    return this.references[group]?.size ?? 0;
  }

  #loadSequence([key, requestId, index, numPrompt, maxTotal, phase, row, ...rest]) {
    const [numCached, numScheduled, numShared, tables, states = []] = rest;
    const own = tables.map((table) => [...table]);
    const size = { numPrompt, maxTotal, phase, row, numCached, numScheduled, numShared };
    this.sequences.set(key, { key, requestId, index, ...size, tables: own, states });
    this.phases[phase] += 1;
    own.forEach((table, group) => this.#hold(group, table));
    for (const [group, ...held] of states) this.#hold(group, held);
  }

  #turn([, at, arrived, happened, ended, committed, numGenerated, kv, queries, hits]) {
    for (const [key, requestId, index, numPrompt, maxTotal] of arrived) {
      this.#loadSequence([key, requestId, index, numPrompt, maxTotal, "waiting", null, 0, 0, 0, []]);
    }
    for (const change of kv) this.#changeCache(change);
    for (const event of happened) this.#move(event);
    for (const [key, reason] of ended) {
      this.phases[this.sequences.get(key).phase] -= 1;
      this.sequences.delete(key);
      this.finished.set(reason, (this.finished.get(reason) ?? 0) + 1);
    }
    if (committed !== null) this.committed = committed;
    this.at = at;
    this.generatedTokens += numGenerated;
    this.prefixQueries = queries;
    this.prefixHits = hits;
  }

  #move([kind, ...fields]) {
    if (kind === "step") {
      this.#plan(...fields);
      return;
    }
    const [key, row, numCached, resumed] = fields;
    const sequence = this.sequences.get(key);
    if (kind === "admit") {
      this.#enter(sequence, "running");
      Object.assign(sequence, { row, numScheduled: numCached });
      if (!resumed) sequence.numCached = numCached;
    } else if (kind === "preempt") {
      this.#enter(sequence, "preempted");
      Object.assign(sequence, { row: null, numScheduled: 0 });
      this.preemptions += 1;
    } else if (kind === "repeat") {
      const [, numTokens = 1] = fields;
      sequence.numScheduled -= numTokens;
    }
  }

  #enter(sequence, phase) {
    this.phases[sequence.phase] -= 1;
    this.phases[phase] += 1;
    sequence.phase = phase;
  }

  #plan(step, chunks, decoding, width = 1) {
    this.step = step;
    for (const [key, start, length] of chunks) this.sequences.get(key).numScheduled = start + length;
    if (decoding !== null) this.decoding = decoding;
    for (const key of this.decoding) this.sequences.get(key).numScheduled += width;
  }

  #changeCache([kind, key, ...fields]) {
    const sequence = this.sequences.get(key);
    if (kind === "give") {
      [sequence.numShared] = fields;
      sequence.tables = fields[1].map((table) => [...table]);
      sequence.tables.forEach((table, group) => this.#take(group, table, sequence.numShared));
    } else if (kind === "grow") {
      const [group, blocks] = fields;
      this.#take(group, blocks, 0);
      sequence.tables[group].push(...blocks);
    } else if (kind === "drop") {
      this.#swap(sequence, ...fields, SINK_BLOCK);
    } else if (kind === "share") {
      this.#share(sequence, ...fields);
    } else if (kind === "state") {
      this.#holdState(sequence, ...fields);
    } else if (kind === "copy") {
      const [group, , target] = fields;
      this.findable[group].delete(target);
    } else if (kind === "return") {
      sequence.tables.forEach((table, group) => this.#letGo(group, table));
      for (const [group, ...held] of sequence.states) this.#letGo(group, held);
      Object.assign(sequence, { tables: [], states: [], numShared: 0 });
    } else if (kind === "forget") {
      for (const blocks of this.findable) blocks.clear();
    } else if (kind === "fetch") {
      for (const block of key) this.findable[0].delete(block); // these have no key: blocks stand in its place
    } else if (kind === "name") {
      for (const block of fields[0]) this.findable[key].add(block); // a group stands in the key's place
    } else if (kind === "land") {
      for (const block of key) this.findable[0].add(block);
    }
  }

  /** Blocks enter a table; those from `numReused` on are fresh, and their old content cannot be found any more. */
  #take(group, blocks, numReused) {
    this.#hold(group, blocks);
    for (const block of blocks.slice(numReused)) this.findable[group].delete(block);
  }

  /** A state's live slot is fresh, so its old content cannot be found; a snapshot was just named, so it can. */
  #holdState(sequence, group, live, snapshot) {
    const former = sequence.states.find(([each]) => each === group);
    if (former) this.#letGo(group, former.slice(1));
    this.#hold(group, [live, snapshot]);
    this.findable[group].delete(live);
    if (snapshot !== SINK_BLOCK) this.findable[group].add(snapshot);
    const others = sequence.states.filter((each) => each !== former);
    sequence.states = [...others, [group, live, snapshot]].sort(([a], [b]) => a - b);
  }

  #share(sequence, numShared, swapped) {
    for (const [group, index, block] of swapped) this.#swap(sequence, group, index, block);
    sequence.tables.forEach((table, group) => {
      for (const block of table.slice(sequence.numShared, numShared)) {
        if (block !== SINK_BLOCK) this.findable[group].add(block);
      }
    });
    sequence.numShared = numShared;
  }

  #swap(sequence, group, index, block) {
    const table = sequence.tables[group];
    this.#letGo(group, [table[index]]);
    table[index] = block;
    this.#hold(group, [block]);
  }

  #hold(group, blocks) {
    const references = this.references[group];
    for (const block of blocks) {
      if (block !== SINK_BLOCK) references.set(block, (references.get(block) ?? 0) + 1);
    }
  }

  #letGo(group, blocks) {
    const references = this.references[group];
    for (const block of blocks) {
      if (block === SINK_BLOCK) continue;
      const left = references.get(block) - 1;
      if (left) references.set(block, left);
      else references.delete(block);
    }
  }
}

/** A sequence in the order of the log's entries. */
function sequenceFields(sequence) {
  const { key, requestId, index, numPrompt, maxTotal, phase, row, numCached, numScheduled, numShared } = sequence;
  const tables = sequence.tables.map((table) => [...table]);
  const fields = [key, requestId, index, numPrompt, maxTotal, phase, row, numCached, numScheduled, numShared, tables];
  return sequence.states.length ? [...fields, sequence.states] : fields;
}
