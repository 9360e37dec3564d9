// One choice of an answer: what it thinks, says and calls, in that order or another, its tokens, and where its time went.

import { announce } from "./announcer.js";
import { Calls } from "./calls.js";
import { build } from "./dom.js";
import { JsonProblem, readJson } from "./json_text.js";
import { ReasoningPart, TextPart } from "./parts.js";
import { checkValue } from "./schema_check.js";
import { timingsView } from "./timings.js";
import { surpriseLegend } from "./tokens.js";

export class ChoiceView {
  constructor(answer, index, isOneOfMany) {
    this.answer = answer;
    this.index = index;
    this.parts = [];
    this.calls = null;
    this.legend = null;
    this.numTokens = 0;
    /** Tokens whose text the server holds back, or that have none. */
    this.pending = [];
    this.finish = null;
    this.isWhole = false;
    this.timings = null;
    this.felt = null;
    this.outcome = "";
    this.shown = build("div", { class: "parts" });
    this.element = build("div", { class: "choice", "data-index": index });
    if (isOneOfMany) {
      this.button = build("button", { class: "button plain choose", type: "button", "aria-pressed": String(index === answer.chosen), onclick: () => answer.choose(index) },
        `Answer ${index + 1}`);
      this.element.append(this.button);
    }
    this.element.append(this.shown);
  }

  get text() {
    return this.textOf(TextPart);
  }

  textOf(kind) {
    return this.parts.filter((each) => each instanceof kind).map((each) => each.text).join("");
  }

  /** The turns that it adds to the conversation; calls without results are no part of it. */
  messages({ withResults = this.calls?.isAnswered ?? false } = {}) {
    const { text, calls } = this;
    if (text === "" && !withResults) return [];
    const thought = this.textOf(ReasoningPart);
    const turn = { role: "assistant", content: text || null };
    if (thought !== "") turn.reasoning_content = thought;
    return withResults ? [{ ...turn, tool_calls: calls.asMessage() }, ...calls.results()] : [turn];
  }

  /** @param {import("./generation.js").Addition} addition */
  add({ thought, text, calls, tokens, finish, stopReason, timings }) {
    this.felt ??= (performance.now() - this.answer.started) / 1000;
    if (thought !== "") this.part(ReasoningPart).add(thought);
    if (text !== null) this.part(TextPart).add(text);
    for (const call of calls) this.addCall(call);
    this.numTokens += tokens.length;
    if (tokens.length > 0) this.addTokens(tokens, thought + (text ?? ""), text === null && thought === "");
    if (calls.length > 0) this.pending = [];
    if (finish !== null) {
      this.finish = stopReason === null ? finish : `${finish}: ${JSON.stringify(stopReason)}`;
      this.isWhole = finish !== "length";
    }
    this.timings = timings ?? this.timings;
  }

  /** The part that grows, of this kind: a new one where the last one is of another. */
  part(Kind) {
    const last = this.parts.at(-1);
    if (last instanceof Kind && this.shown.lastChild === last.element) return last;
    last?.end();
    if (Kind === ReasoningPart && this.index === 0) announce("Thinking");
    const part = new Kind();
    this.parts.push(part);
    this.shown.append(part.element);
    return part;
  }

  addCall(call) {
    if (this.calls === null) {
      this.parts.at(-1)?.end();
      const tools = this.answer.request.body.tools ?? [];
      const schemas = new Map(tools.map((tool) => [tool.function.name, tool.function.parameters]));
      this.calls = new Calls(schemas, () => {
        this.answer.choose(this.index);
        return this.answer.onResults();
      });
      this.shown.append(this.calls.element);
      if (this.legend !== null) this.calls.element.before(this.legend);
    }
    this.calls.add(call);
  }

  /** Tokens of a text stand with it, also those that came before it; those of marks and calls are counted. */
  addTokens(scored, text, isSilent) {
    if (isSilent) {
      this.pending.push(...scored);
      return;
    }
    this.parts.at(-1).addTokens([...heldBefore(text, this.pending, scored), ...scored]);
    this.pending = [];
    if (this.legend !== null) return;
    this.legend = surpriseLegend();
    this.element.classList.add("has-tokens");
    this.shown.after(this.legend);
  }

  end({ ending, seconds, usage, isOnly }) {
    if (this.shown.childElementCount === 0) this.part(TextPart);
    for (const part of this.parts) part.end();
    const thoughts = this.parts.filter((each) => each instanceof ReasoningPart);
    const counted = usage?.completion_tokens_details?.reasoning_tokens;
    if (isOnly && thoughts.length === 1 && counted) thoughts[0].showCount(counted);
    this.calls?.end(this.isWhole);
    this.element.append(...this.verdict());
    const tokens = isOnly && usage !== null ? usage.completion_tokens : this.numTokens || null;
    const { timings, felt } = this;
    this.element.append(timingsView({ timings, felt, seconds, tokens, usage: isOnly ? usage : null, ending: this.finish ?? ending }));
    if (this.calls !== null) this.outcome = `Calls ${this.calls.names.join(", ")}.`;
  }

  /** Whether the text is what was asked for, where it was asked to be JSON. */
  verdict() {
    const schema = this.answer.request.body.response_format?.json_schema.schema;
    if (schema === undefined) return [];
    const { isGood, message } = judged(this.text, schema, this.isWhole);
    this.outcome = message;
    return [build("p", { class: `verdict ${isGood ? "good" : "bad"}` }, message)];
  }

  /** A button that shows where the engine computed this answer. */
  engineLink() {
    const { answer, index } = this;
    const link = build("button", { class: "button plain engine-link", type: "button" }, "See it in the engine");
    link.addEventListener("click", () => {
      if (!answer.showRow(answer.engineId, index)) link.replaceWith(build("span", { class: "hint", role: "status" }, "The engine’s log does not go back that far."));
    });
    return link;
  }

  showChosen(isChosen) {
    this.button?.setAttribute("aria-pressed", String(isChosen));
  }
}

/** The last of the pending tokens whose text begins a text; where parts of characters hide that, those since the last mark. */
function heldBefore(text, pending, scored) {
  const own = scored.map((each) => each.text).join("");
  let all = own;
  for (let count = 0; count <= pending.length; count += 1) {
    if (count > 0) all = pending.at(-count).text + all;
    if (all.includes(text)) return pending.slice(pending.length - count);
  }
  const last = pending.findLastIndex((each) => each.text.trim() !== "" && !each.text.includes("\ufffd"));
  return pending.slice(last + 1);
}

function judged(text, schema, isWhole) {
  if (!isWhole) return { isGood: false, message: "The answer is not whole, so it cannot fit the schema." };
  try {
    const { fault, unchecked } = checkValue(readJson(text), schema);
    if (fault !== null) return { isGood: false, message: `The answer does not fit the schema: ${fault}.` };
    return { isGood: true, message: `The answer fits the schema${unchecked.length === 0 ? "" : `, of which ${unchecked.join(", ")} is not checked here`}.` };
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    return { isGood: false, message: `The answer is no JSON: ${error.message}.` };
  }
}
