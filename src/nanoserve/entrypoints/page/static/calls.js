// Calls of tools as cards: their arguments as they are written, and boxes for the results with which the conversation goes on.

import { build } from "./dom.js";
import { JsonProblem, LineBreaker, readJson } from "./json_text.js";
import { checkValue } from "./schema_check.js";

const WAITING = "waits for its result";
let made = 0;

/** One call. */
class CallCard {
  constructor({ id, name }, schema) {
    this.id = id;
    this.name = name;
    this.schema = schema;
    this.arguments = "";
    this.lines = new LineBreaker();
    this.node = document.createTextNode("");
    this.state = build("span", { class: "call-state" }, "writing");
    const title = build("h3", {}, build("span", { class: "visually-hidden" }, "Call of "), build("code", {}, name));
    this.shown = build("pre", { class: "call-arguments", tabindex: 0, "aria-label": `Arguments of ${name}`, role: "group" }, this.node);
    this.problem = build("p", { class: "problem" });
    this.element = build("div", { class: "call" }, build("div", { class: "call-head" }, title, this.state), this.shown, this.problem);
  }

  add(text) {
    this.arguments += text;
    this.node.appendData(this.lines.add(text));
  }

  /**
   * The answer has ended: say what is wrong with the arguments, which are shown as they came where they are no JSON.
   * @returns whether the call is whole: one with JSON is, even where the answer was cut behind it
   */
  end(isAnswerWhole) {
    this.show("written");
    try {
      const { fault } = checkValue(readJson(this.arguments), this.schema ?? true);
      if (fault !== null) this.problem.textContent = `The arguments do not fit the tool: ${fault}.`;
      return true;
    } catch (error) {
      if (!(error instanceof JsonProblem)) throw error;
      if (isAnswerWhole) this.node.data = this.arguments;
      else this.show("cut off");
      this.problem.textContent = isAnswerWhole ? `The arguments are no JSON: ${error.message}.` : "The answer ended before the call did.";
      return isAnswerWhole;
    }
  }

  show(state) {
    this.state.textContent = state;
  }

  /** Ask for the result. */
  addField() {
    this.show(WAITING);
    const id = `result-${(made += 1)}`;
    this.missing = build("p", { class: "problem", id: `${id}-problem` });
    this.field = build("textarea", { id, rows: 2, "aria-describedby": `${id}-problem`, placeholder: "What the tool answers, as text or JSON" });
    const label = build("label", { for: id }, "Result", build("span", { class: "visually-hidden" }, ` of ${this.name}`));
    this.element.append(build("div", { class: "call-result" }, label, this.field, this.missing));
  }

  /** Whether there is a result; says so where there is none. */
  check() {
    const isThere = this.field.value.trim() !== "";
    this.missing.textContent = isThere ? "" : "A result is needed before the model can go on.";
    if (isThere) this.field.removeAttribute("aria-invalid");
    else this.field.setAttribute("aria-invalid", "true");
    return isThere;
  }
}

/** The calls of one answer, in a form that sends their results. */
export class Calls {
  /**
   * @param {Map<string, unknown>} schemas of the arguments, by tool
   * @param {() => boolean} onResults sends the results; false where that cannot be now
   */
  constructor(schemas, onResults) {
    this.schemas = schemas;
    this.onResults = onResults;
    this.cards = new Map();
    this.isAnswered = false;
    this.button = build("button", { class: "button primary", type: "submit" });
    this.row = build("div", { class: "composer-row", hidden: true }, this.button);
    this.element = build("form", { class: "calls", novalidate: true, onsubmit: (event) => this.submit(event), onkeydown: (event) => this.onKey(event) }, this.row);
  }

  get names() {
    return [...this.cards.values()].map((card) => card.name);
  }

  /** @param {import("./generation.js").CallDelta} delta */
  add(delta) {
    if (!this.cards.has(delta.index)) {
      [...this.cards.values()].at(-1)?.show("written");
      const card = new CallCard(delta, this.schemas.get(delta.name));
      this.cards.set(delta.index, card);
      this.row.before(card.element);
    }
    this.cards.get(delta.index).add(delta.arguments);
  }

  /** The answer has ended: ask for the results, where all calls are whole. */
  end(isAnswerWhole) {
    const cards = [...this.cards.values()];
    const areWhole = cards.map((card) => card.end(isAnswerWhole));
    if (areWhole.includes(false)) return;
    for (const card of cards) card.addField();
    this.button.textContent = cards.length === 1 ? "Send the result" : `Send the ${cards.length} results`;
    this.row.hidden = false;
  }

  onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.tagName !== "TEXTAREA") return;
    event.preventDefault();
    this.element.requestSubmit();
  }

  submit(event) {
    event.preventDefault();
    if (this.isAnswered) return;
    const missing = [...this.cards.values()].filter((card) => !card.check());
    if (missing.length > 0) missing[0].field.focus();
    else if (this.onResults()) this.setAnswered(true);
  }

  /** The results were sent, or could not be. */
  setAnswered(isAnswered) {
    this.isAnswered = isAnswered;
    this.row.hidden = isAnswered;
    for (const card of this.cards.values()) {
      card.field.readOnly = isAnswered;
      card.show(isAnswered ? "answered" : WAITING);
    }
  }

  /** The calls as the conversation keeps them. */
  asMessage() {
    return [...this.cards.values()].map(({ id, name, arguments: written }) => ({ id, type: "function", function: { name, arguments: written } }));
  }

  /** Their results as turns of the conversation. */
  results() {
    return [...this.cards.values()].map(({ id, field }) => ({ role: "tool", tool_call_id: id, content: field.value }));
  }
}
