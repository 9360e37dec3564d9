// A button that sends some requests when the engine has none, so that there is something to see.

import { make, setText } from "./dom.js";

export class SamplesButton {
  #isSending = false;

  /** `send` sends them, and is fulfilled when they are answered. */
  constructor(view, send) {
    Object.assign(this, { view, send });
    this.button = make("button", { type: "button", text: "Send 8 requests", onclick: () => this.#press() });
    this.problem = make("p", { class: "engine-problem", role: "alert" });
    this.element = make("div", { class: "engine-samples" }, this.problem, this.button);
  }

  draw() {
    this.button.setAttribute("aria-disabled", String(!this.#isIdle));
    this.button.title = this.#isIdle ? "Eight short texts of several kinds, to see how they are scheduled" : "When the engine has nothing to do";
  }

  get #isIdle() {
    const { connection, status, log } = this.view;
    const isOpen = connection === "live" && status?.status === "ready" && !status.draining;
    return isOpen && !this.#isSending && log.head.sequences.size === 0;
  }

  async #press() {
    if (!this.#isIdle) return;
    this.#isSending = true;
    setText(this.problem, "");
    this.view.player.play();
    this.draw();
    try {
      await this.send();
    } catch (error) {
      setText(this.problem, error.message);
    } finally {
      this.#isSending = false;
      this.draw();
    }
  }
}
