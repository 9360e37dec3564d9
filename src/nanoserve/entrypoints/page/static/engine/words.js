// What the sequences say, where the log tells it.

export class Words {
  #texts = new Map();
  #tokens = new Map();

  /** `words` as a turn has them; `idOf` gives the row's id of a key. */
  add(words, idOf) {
    for (const [key, tokenIds, texts] of words) {
      for (const [token, text] of Object.entries(texts)) this.#texts.set(Number(token), text);
      const id = idOf(key);
      if (!this.#tokens.has(id)) this.#tokens.set(id, []);
      this.#tokens.get(id).push(...tokenIds);
    }
  }

  /** The text of a row's tokens [start, end), as far as it is known. */
  read(id, start, end) {
    const tokens = this.#tokens.get(id) ?? [];
    return tokens.slice(start, end).map((token) => this.#texts.get(token) ?? "").join("");
  }

  /** Forget the rows that are not wanted any more. */
  keep(isWanted) {
    for (const id of this.#tokens.keys()) if (!isWanted(id)) this.#tokens.delete(id);
  }
}
