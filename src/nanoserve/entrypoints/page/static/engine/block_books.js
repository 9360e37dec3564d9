// Who holds each block of a cache group, and how far its tokens reach.

/** The books of one cache group at one moment. */
export class BlockBooks {
  constructor(replay, group, numBlocks, blockSize) {
    this.group = group;
    this.references = replay.references[group] ?? new Map();
    this.findable = replay.findable[group] ?? new Set();
    /** The first sequence that holds each block. */
    this.owner = new Array(numBlocks + 1).fill(null);
    /** Which part of each block holds tokens. */
    this.fill = new Float32Array(numBlocks + 1);
    /** All who hold a block, where they are several. */
    this.sharers = new Map();
    for (const sequence of replay.sequences.values()) this.#note(sequence, blockSize);
  }

  /** `held`, `shared`, `cached` (free, but findable) or `free`. */
  state(block) {
    const count = this.references.get(block) ?? 0;
    if (count) return count > 1 ? "shared" : "held";
    return this.findable.has(block) ? "cached" : "free";
  }

  /** Every sequence that holds a block. */
  owners(block) {
    return this.sharers.get(block) ?? (this.owner[block] ? [this.owner[block]] : []);
  }

  /** How many blocks are in each state. */
  count(numBlocks) {
    const held = this.references.size;
    let cached = 0;
    let shared = 0;
    for (const block of this.findable) cached += this.references.has(block) ? 0 : 1;
    for (const count of this.references.values()) shared += count > 1 ? 1 : 0;
    return { held, shared, cached, free: numBlocks - held - cached };
  }

  #note(sequence, blockSize) {
    sequence.tables[this.group]?.forEach((block, index) => {
      if (block) this.#own(sequence, block, Math.min(Math.max(sequence.numScheduled / blockSize - index, 0), 1));
    });
    const [, live, snapshot] = sequence.states.find(([group]) => group === this.group) ?? [];
    if (live) this.#own(sequence, live, 1);
    if (snapshot) this.#own(sequence, snapshot, 1);
  }

  #own(sequence, block, reach) {
    this.fill[block] = Math.max(this.fill[block], reach);
    if (!this.owner[block]) this.owner[block] = sequence;
    else if (this.sharers.has(block)) this.sharers.get(block).push(sequence);
    else this.sharers.set(block, [this.owner[block], sequence]);
  }
}
