// The colours of the view, read from the style sheet's custom properties, so that pictures follow light and dark.

import { NUM_COLOURS } from "./looks.js";

const COLOUR_NAMES = [
  "text", "muted", "line", "surface", "raised", "queued", "prefill", "decode", "preempted", "hit", "free", "accent",
  "on-bar",
];
const HATCHED = { size: 6, rising: true };
/** The patterns of `Looks`: plain, striped, and crossed; as in the style sheet, under `data-pattern`. */
const PATTERNS = [null, { size: 8, rising: true }, { size: 8, rising: true, falling: true }];

export class Palette {
  #probe;
  #patterns = new Map();

  /** Reads the properties as they hold inside of `element`; `onChange` is called when the theme turns. */
  constructor(element, onChange) {
    this.#probe = document.createElement("span");
    this.#probe.hidden = true;
    element.append(this.#probe);
    this.onChange = () => {
      this.refresh();
      onChange();
    };
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.onChange);
    this.observer = new MutationObserver(this.onChange);
    this.observer.observe(document.documentElement, { attributes: true });
    this.refresh();
  }

  refresh() {
    this.#patterns.clear();
    for (const name of COLOUR_NAMES) this[name === "on-bar" ? "onBar" : name] = this.#read(`--engine-${name}`);
    this.owners = Array.from({ length: NUM_COLOURS }, (_, index) => this.#read(`--owner-${index}`));
  }

  /** The colour of a sequence's look; one that never held blocks has none, but the colour of the queue. */
  ground(look) {
    return look === null ? this.queued : this.owners[look % NUM_COLOURS];
  }

  /** What fills the blocks of a sequence. */
  owner(context, look) {
    const lines = PATTERNS[Math.floor(look / NUM_COLOURS)];
    const ground = this.ground(look);
    return lines ? this.#pattern(context, { ground, colour: this.surface, ...lines }) : ground;
  }

  /** Let an element have a sequence's look. */
  dress(element, look) {
    element.style.backgroundColor = this.ground(look);
    element.dataset.pattern = Math.floor(look / NUM_COLOURS);
  }

  /** Slanted lines of a colour, for what is drawn hatched. */
  hatch(context, colour) {
    return this.#pattern(context, { colour, ...HATCHED });
  }

  #pattern(context, lines) {
    const name = Object.values(lines).join();
    if (!this.#patterns.has(name)) this.#patterns.set(name, context.createPattern(makeTile(lines), "repeat"));
    return this.#patterns.get(name);
  }

  #read(property) {
    this.#probe.style.color = `var(${property})`;
    return getComputedStyle(this.#probe).color;
  }

  destroy() {
    this.dark.removeEventListener("change", this.onChange);
    this.observer.disconnect();
    this.#probe.remove();
  }
}

/** One tile of slanted lines that fit together. */
function makeTile({ ground = "transparent", colour, size, rising, falling }) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  for (const left of [-size, 0, size]) {
    const [from, to] = [left - 1, left + size + 1];
    if (rising) drawLine(pen, from, size + 1, to, -1);
    if (falling) drawLine(pen, from, -1, to, size + 1);
  }
  pen.stroke();
  return tile;
}

function drawLine(pen, fromX, fromY, toX, toY) {
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
}
