// The state of the engine as a whole, and what it is.

import { makeHelp } from "./help.js";
import { formatNumber, make, setText } from "./dom.js";

const CONNECTIONS = {
  connecting: "Connecting to the server",
  away: "The server does not answer; trying again",
  full: "The server lets nobody else watch at the moment; trying again",
  refused: "The server asks for a key",
};

export class Banner {
  constructor(view) {
    this.view = view;
    this.state = make("p", { class: "engine-state", role: "status" });
    this.about = make("p", { class: "engine-about" });
    this.element = make("div", { class: "engine-banner" }, this.state, this.about, makeHelp(view.player.isLive));
  }

  draw() {
    const { view } = this;
    const state = this.#state();
    this.element.dataset.state = state.name;
    setText(this.state, state.text);
    setText(this.about, view.header ? describeEngine(view.header) : "");
  }

  #state() {
    const { connection, status, player } = this.view;
    if (connection && connection !== "live") return { name: connection, text: CONNECTIONS[connection] };
    if (!player.isLive) return recordedState(player.replay.status);
    if (!status) return { name: "connecting", text: CONNECTIONS.connecting };
    const name = status.draining ? "draining" : status.status;
    const about = status.draining ? "Draining: no new requests are taken" : capitalize(name);
    const restarts = status.restarts ? `, restarted ${status.restarts === 1 ? "once" : `${status.restarts} times`}` : "";
    return { name, text: `${about}${restarts}` };
  }
}

function recordedState(status) {
  return status ? { name: status, text: `Recording: ${status}` } : { name: "recording", text: "Recording" };
}

function capitalize(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function describeEngine(header) {
  const { model, device, dtype, release, num_blocks: blocks, block_size: size } = header;
  const pool = `${formatNumber(blocks)} blocks of ${size} tokens`;
  const limits = `at most ${header.max_num_seqs} sequences and ${formatNumber(header.max_num_batched_tokens)} tokens a step`;
  return `${model} on ${device}, ${dtype}, ${pool}, ${limits}, nanoserve ${release}`;
}
