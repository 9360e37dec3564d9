// What a screen reader is told of an answer that grows: whole sentences, not tokens, and never in the middle of a word.

import { byId } from "./dom.js";

const PAUSE = 1000; // milliseconds: who is told more than they can hear hears nothing
const SENTENCE = /^[\s\S]*[.!?\u2026:\n](?=\s)/;

/** Say one thing, when the reader has finished the last one. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Says a growing text in whole sentences, those of a second together. */
export class SpokenText {
  #rest = "";
  #next = 0;
  #timer = null;

  add(text) {
    this.#rest += text;
    this.#timer ??= setTimeout(() => this.#say(), Math.max(0, this.#next - performance.now()));
  }

  /** Say what is left, and how it ended. */
  end(ending) {
    clearTimeout(this.#timer);
    this.#timer = null;
    announce(`${this.#rest.trim()} ${ending}`.trim());
    this.#rest = "";
  }

  #say() {
    this.#timer = null;
    this.#next = performance.now() + PAUSE;
    const whole = this.#rest.match(SENTENCE)?.[0];
    if (whole === undefined) return;
    this.#rest = this.#rest.slice(whole.length);
    announce(whole.trim());
  }
}
