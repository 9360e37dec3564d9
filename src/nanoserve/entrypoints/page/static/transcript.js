// The turns of the conversation and the runs of completions: what was said, in order, and what may be sent again.

import { build, byId } from "./dom.js";

const SLACK = 80;
const MARGIN = 8;

/** Both lists of turns, of which the mode shows one. */
export class Transcript {
  constructor() {
    this.lists = { chat: byId("chat-turns"), completion: byId("completion-turns") };
    this.turns = { chat: [], completion: [] };
  }

  show(mode) {
    this.mode = mode;
    for (const [name, list] of Object.entries(this.lists)) list.hidden = name !== mode;
  }

  get isEmpty() {
    return this.turns[this.mode].length === 0;
  }

  /** What a chat request sends of what was said so far, or before a turn. */
  messages(before = null) {
    const end = before === null ? this.turns.chat.length : this.turns.chat.indexOf(before);
    return this.turns.chat.slice(0, end).flatMap((turn) => turn.messages());
  }

  addUser(text, onEdit) {
    const edit = build("button", { class: "button plain edit", type: "button" }, "Edit");
    const heading = build("h2", { class: "who" }, this.mode === "chat" ? "You" : "Prompt");
    const element = build("article", { class: "turn user", "aria-label": heading.textContent }, heading, build("div", { class: "said" }, text), edit);
    const turn = this.add({ messages: () => [{ role: "user", content: text }], element });
    edit.addEventListener("click", () => onEdit(turn, text));
    return turn;
  }

  addAnswer(view) {
    return this.add({ messages: () => view.messages(), element: view.element });
  }

  add(turn) {
    this.turns[this.mode].push(turn);
    this.lists[this.mode].append(turn.element);
    this.showEnd();
    return turn;
  }

  /** Forget a turn and all that came after it; false where it is forgotten already. */
  removeFrom(turn) {
    const turns = this.turns[this.mode];
    const place = turns.indexOf(turn);
    if (place < 0) return false;
    for (const each of turns.splice(place)) each.element.remove();
    return true;
  }

  /** Forget all that came after a turn; false where the turn itself is forgotten. */
  removeAfter(turn) {
    const turns = this.turns[this.mode];
    const place = turns.indexOf(turn);
    if (place >= 0 && place + 1 < turns.length) this.removeFrom(turns[place + 1]);
    return place >= 0;
  }

  clear() {
    if (!this.isEmpty) this.removeFrom(this.turns[this.mode][0]);
  }

  /** Bring what was said last into sight, above the composer where that stays in sight. */
  showEnd() {
    window.scrollBy(0, Math.max(this.below + MARGIN, 0));
  }

  /** Keep the end in sight while it grows, unless the reader has scrolled away. */
  follow(change) {
    const isInSight = this.below < SLACK;
    change();
    if (isInSight) this.showEnd();
  }

  /** How many pixels of the conversation are below what can be seen. */
  get below() {
    const end = Math.min(byId("composer").getBoundingClientRect().top, window.innerHeight);
    return this.lists[this.mode].getBoundingClientRect().bottom - end;
  }
}
