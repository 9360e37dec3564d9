// The colours of the view, read from the style sheet's custom properties, so that pictures follow light and dark.

const COLOUR_NAMES = [
  "text", "muted", "line", "surface", "raised", "queued", "prefill", "decode", "preempted", "hit", "free", "accent",
  "on-bar",
];
const NUM_OWNERS = 12;

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
    this.owners = Array.from({ length: NUM_OWNERS }, (_, index) => this.#read(`--owner-${index}`));
  }

  /** The colour of a sequence: those that arrive after one another lie far apart. */
  owner(key) {
    return this.owners[key % this.owners.length];
  }

  /** Slanted lines of a colour, for what is drawn hatched. */
  hatch(context, colour) {
    let pattern = this.#patterns.get(colour);
    if (!pattern) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const pen = tile.getContext("2d");
      pen.strokeStyle = colour;
      pen.lineWidth = 1.6;
      for (const shift of [-6, 0, 6]) {
        pen.moveTo(shift - 1, 7);
        pen.lineTo(shift + 7, -1);
      }
      pen.stroke();
      pattern = context.createPattern(tile, "repeat");
      this.#patterns.set(colour, pattern);
    }
    return pattern;
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
