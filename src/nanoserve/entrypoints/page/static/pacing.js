// A stream shown no faster than the page can draw it: the longer an answer has become, the more of it comes at once.

const LONGEST_WAIT = 1000;
const REST = 4; // for each millisecond of drawing, so that the reader can scroll, type and stop meanwhile

/** Collects what comes, and hands it to `show` in lists; the first of them at once. */
export class Pacer {
  #coming = [];
  #timer = null;
  #wait = 0;

  /** @param {(all: object[]) => void} show draws, and asks for the layout, which is what takes the time */
  constructor(show) {
    this.show = show;
  }

  add(each) {
    this.#coming.push(each);
    this.#timer ??= setTimeout(() => this.flush(), this.#wait);
  }

  /** Show what has come so far. */
  flush() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#coming.length === 0) return;
    const began = performance.now();
    this.show(this.#coming.splice(0));
    this.#wait = Math.min(REST * (performance.now() - began), LONGEST_WAIT);
  }
}
