// The buttons of the player: play, pause, step, speed, and a scrubber over what is there of the log.

import { formatNumber, formatSeconds, make, setText } from "./dom.js";
import { SPEEDS } from "./player.js";

export class PlayerControls {
  constructor(view) {
    this.view = view;
    const { player } = view;
    const button = (name, text, onclick) =>
      make("button", { type: "button", "aria-label": name, title: name, text, onclick });
    this.start = button("To the start", "|◀", () => player.toStart());
    this.back = button("One turn back", "◀", () => player.step(-1));
    this.play = button("Pause", "", () => (player.isPlaying ? player.pause() : player.play()));
    this.play.className = "engine-play";
    this.forward = button("One turn on", "▶", () => player.step(1));
    this.finish = button("To the end", "▶|", () => player.toEnd());
    this.scrubber = make("input", { type: "range", "aria-label": "Position in the log", oninput: () => this.#scrub() });
    this.text = make("p", { class: "engine-number engine-position" });
    this.note = make("p", { class: "visually-hidden", role: "status" });
    const buttons = [this.start, this.back, this.play, this.forward, this.finish];
    const group = make("div", { class: "engine-buttons", role: "group", "aria-label": "Player" }, ...buttons);
    const speed = player.isLive ? [] : [this.#makeSpeed()];
    this.element = make("div", { class: "engine-player" }, group, this.scrubber, ...speed, this.text, this.note);
  }

  draw() {
    const { player, log } = this.view;
    const { replay, position } = player;
    const name = player.isPlaying ? "Pause" : player.isLive ? "Resume, and catch up" : "Play";
    setText(this.play, player.isPlaying ? "Pause" : player.isLive ? "Resume" : "Play");
    this.play.setAttribute("aria-label", name);
    this.play.title = name;
    const first = log.first + 1;
    const isAtStart = position <= first;
    for (const each of [this.start, this.back]) each.setAttribute("aria-disabled", String(isAtStart));
    for (const each of [this.forward, this.finish]) each.setAttribute("aria-disabled", String(player.isAtEnd));
    this.scrubber.min = first;
    this.scrubber.max = Math.max(log.end, first);
    this.scrubber.value = position;
    const text = `step ${formatNumber(replay.step)}, ${formatSeconds(replay.at)}`;
    this.scrubber.setAttribute("aria-valuetext", text);
    setText(this.text, player.isLive && player.isPlaying ? `live, ${text}` : text);
    if (!player.isPlaying) setText(this.note, this.view.summarize());
  }

  #scrub() {
    const { player } = this.view;
    const position = Number(this.scrubber.value);
    player.pause();
    player.seek(position);
  }

  #makeSpeed() {
    const { player } = this.view;
    const options = SPEEDS.map((speed) =>
      make("option", { value: speed, text: `${speed} turns/s`, selected: speed === player.speed }),
    );
    const select = make("select", { onchange: () => (player.speed = Number(select.value)) }, ...options);
    return make("label", { class: "engine-speed" }, make("span", { class: "visually-hidden", text: "Speed" }), select);
  }
}
