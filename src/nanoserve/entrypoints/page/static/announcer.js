// What a screen reader is told of an answer that grows: whole sentences, not tokens, and never in the middle of a word.

import { byId } from "./dom.js";

const SENTENCE = /^[\s\S]*[.!?\u2026:\n](?=\s)/;

/** Say one thing, when the reader has finished the last one. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Says a growing text sentence by sentence. */
export class SpokenText {
  #rest = "";

  add(text) {
    this.#rest += text;
    const whole = this.#rest.match(SENTENCE)?.[0];
    if (whole === undefined) return;
    this.#rest = this.#rest.slice(whole.length);
    announce(whole.trim());
  }

  /** Say what is left, and how it ended. */
  end(ending) {
    announce(`${this.#rest.trim()} ${ending}`.trim());
    this.#rest = "";
  }
}
