// Who waits, since when and with how long a prompt; and who runs, and how far they are.

import { formatCount, formatNumber, formatSeconds, make, sequenceName, setText } from "./dom.js";

const MOST_LISTED = 500;
const CROWD = 12; // from here on each has a line's part, without its numbers

export class Queue {
  constructor(view) {
    this.view = view;
    this.waiting = makeList("Waiting");
    this.running = makeList("Running");
    this.element = make(
      "section",
      { class: "engine-panel engine-queue", "aria-label": "Sequences" },
      this.running.element,
      this.waiting.element,
    );
    this.element.addEventListener("click", (event) => {
      const { id } = event.target.closest("button")?.dataset ?? {};
      if (id) view.select(id === view.selected ? null : id);
    });
  }

  draw() {
    const { replay } = this.view.player;
    const sequences = [...replay.sequences.values()];
    const running = sequences.filter(({ phase }) => phase === "running").sort((a, b) => a.key - b.key);
    const waiting = sequences.filter(({ phase }) => phase !== "running");
    waiting.sort((a, b) => (b.phase === "preempted") - (a.phase === "preempted") || a.key - b.key);
    this.#fill(this.running, running, (each) => this.#describeRunning(each));
    this.#fill(this.waiting, waiting, (each) => this.#describeWaiting(each));
  }

  /** Lines are kept and changed, so that the focus stays where it is. */
  #fill(list, sequences, describe) {
    const { view } = this;
    const shown = sequences.slice(0, MOST_LISTED);
    const isCrowd = sequences.length > CROWD;
    list.lines.classList.toggle("is-crowd", isCrowd);
    setText(list.count, formatNumber(sequences.length));
    while (list.lines.children.length > shown.length) list.lines.lastChild.remove();
    while (list.lines.children.length < shown.length) list.lines.append(makeLine());
    shown.forEach((sequence, index) => {
      const [button] = list.lines.children[index].children;
      const [swatch, name, about, bar] = button.children;
      const id = view.idOf(sequence.key);
      button.dataset.id = id;
      button.setAttribute("aria-pressed", String(id === view.selected));
      view.palette.dress(swatch, view.lookOf(sequence.key));
      setText(name, sequenceName(sequence));
      setText(about, isCrowd ? "" : describe(sequence));
      bar.hidden = sequence.phase !== "running";
      bar.firstChild.style.transform = `scaleX(${Math.min(sequence.numScheduled / sequence.maxTotal, 1)})`; // no new layout
    });
    const rest = sequences.length - shown.length;
    setText(list.rest, rest > 0 ? `and ${formatNumber(rest)} more` : sequences.length ? "" : "none");
  }

  #describeRunning({ key, numScheduled, maxTotal, row }) {
    const part = this.view.player.replay.decoding.includes(key) ? "decode" : "prefill";
    return `${part}, ${numScheduled} of ${formatCount(maxTotal, "token")}, row ${row}`;
  }

  #describeWaiting({ key, phase, numPrompt }) {
    const arrivedAt = this.view.log.history.rows.get(this.view.idOf(key))?.arrivedAt ?? null;
    const now = this.view.now;
    const since = arrivedAt === null || now < arrivedAt ? "" : `, ${formatSeconds(now - arrivedAt)} since it arrived`;
    return `${phase === "preempted" ? "preempted, " : ""}prompt of ${formatNumber(numPrompt)}${since}`;
  }
}

function makeList(title) {
  const count = make("span", { class: "engine-count" });
  const lines = make("ul", { class: "engine-lines" });
  const rest = make("p", { class: "engine-note" });
  const element = make("div", {}, make("h2", {}, `${title} `, count), lines, rest);
  return { element, count, lines, rest };
}

function makeLine() {
  const swatch = make("span", { class: "engine-swatch", "aria-hidden": "true" });
  const bar = make("span", { class: "engine-bar", "aria-hidden": "true" }, make("span"));
  const texts = [make("span", { class: "engine-name" }), make("span", { class: "engine-about" })];
  return make("li", {}, make("button", { type: "button" }, swatch, ...texts, bar));
}
