// Which look each sequence has: a colour, and a pattern where the colours do not suffice.

export const NUM_COLOURS = 12;
export const NUM_PATTERNS = 3;

/** Hands out looks, numbers below `NUM_COLOURS * NUM_PATTERNS`: nobody's, where there is one, and plain colours first. */
export class Looks {
  #users = new Array(NUM_COLOURS * NUM_PATTERNS).fill(0);
  #next = 0;

  take() {
    const fewest = Math.min(...this.#users);
    const look = inTurn(this.#next).find((each) => this.#users[each] === fewest);
    this.#users[look] += 1;
    this.#next = (look + 1) % NUM_COLOURS;
    return look;
  }

  giveBack(look) {
    this.#users[look] -= 1;
  }
}

/** All looks, one pattern after the other; within each, the colours from one of them on. */
function inTurn(first) {
  return Array.from({ length: NUM_COLOURS * NUM_PATTERNS }, (_, index) => {
    const pattern = Math.floor(index / NUM_COLOURS);
    return pattern * NUM_COLOURS + ((first + index) % NUM_COLOURS);
  });
}
