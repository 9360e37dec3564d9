// What the sequences say, where the log tells it.

export class Words {
  #texts = new Map();
  #tokens = new Map();
  #whole = new Set();

  /** The words of a turn; `idOf` gives the row's id of a key. They are kept as far as nothing before them is missing. */
  add([, , arrived, , , , , , , , words], idOf) {
    for (const [key] of arrived) this.#begin(idOf(key));
    for (const [key, tokenIds, texts] of words) {
      for (const [token, text] of Object.entries(texts)) this.#texts.set(Number(token), text);
      const id = idOf(key);
      if (this.#whole.has(id)) for (const token of tokenIds) this.#tokens.get(id).push(token);
    }
  }

  /** A part of the log is missing: what the living go on to say would stand in the wrong place. */
  break() {
    this.#whole.clear();
  }

  /** The text of a row's tokens [start, end), as far as it is known. */
  read(id, start, end) {
    const tokens = this.#tokens.get(id) ?? [];
    return tokens.slice(start, end).map((token) => this.#texts.get(token) ?? "").join("");
  }

  /** Forget the rows that are not wanted any more. */
  keep(isWanted) {
    for (const id of this.#tokens.keys()) {
      if (isWanted(id)) continue;
      this.#tokens.delete(id);
      this.#whole.delete(id);
    }
  }

  #begin(id) {
    this.#tokens.set(id, []);
    this.#whole.add(id);
  }
}
