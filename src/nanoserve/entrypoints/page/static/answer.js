// One answer in the transcript while it grows: its text, its tokens, where its time went, and how it failed.

import { apiUrl } from "./api.js";
import { build } from "./dom.js";
import { copyButton } from "./copying.js";
import { asCurl, asPython } from "./snippets.js";
import { timingsView } from "./timings.js";
import { surpriseLegend, TokenList } from "./tokens.js";

/** The answer to one request, which may have several choices. */
export class AnswerView {
  /**
   * @param {import("./requests.js").ApiRequest} request
   * @param {{hasKey: () => boolean, onAgain: () => void, showRow: (engineId: string, index: number) => boolean}} options
   *   `showRow` brings an answer's row in the engine into sight; false where there is none any more
   */
  constructor(request, { hasKey, onAgain, showRow }) {
    this.request = request;
    this.showRow = showRow;
    /** The request's name in the engine, from the moment the answer begins. */
    this.engineId = null;
    this.choices = new Map();
    this.chosen = 0;
    this.usage = null;
    this.started = performance.now();
    const url = apiUrl(request.path);
    this.body = build("div", { class: "choices" });
    this.tools = build("div", { class: "turn-tools", hidden: true },
      copyButton("Copy text", () => this.text),
      copyButton("Copy as curl", () => asCurl(request, url, hasKey())),
      copyButton("Copy as Python", () => asPython(request, url, hasKey())),
      build("button", { class: "button plain again", type: "button", onclick: onAgain }, "Try again"));
    this.queue = build("p", { class: "hint queued" });
    const heading = build("h2", { class: "who" }, String(request.body.model));
    this.element = build("article", { class: "turn answer", "aria-label": "Answer", "aria-busy": "true" }, heading, this.queue, this.body, this.tools);
  }

  get isEmpty() {
    return this.choices.size === 0;
  }

  /** The text of the choice that a conversation goes on with. */
  get text() {
    return this.choices.get(this.chosen)?.text ?? "";
  }

  /** Say where in the queue the request is; an empty text where it does not wait. */
  showQueue(text) {
    if (this.queue.textContent !== text) this.queue.textContent = text;
  }

  add({ additions, prompt, usage }) {
    this.showQueue("");
    if (usage !== null) this.usage = usage;
    if (prompt !== null && this.promptTokens === undefined) this.showPrompt(prompt);
    for (const addition of additions) this.choice(addition.index).add(addition);
  }

  /** @param {string} [ending] why every choice that has no end of its own ended */
  end(ending = "the end of the stream") {
    const seconds = (performance.now() - this.started) / 1000;
    const isOnly = this.choices.size === 1;
    for (const choice of this.choices.values()) choice.end({ ending, seconds, usage: this.usage, isOnly });
    if (this.engineId !== null) for (const choice of this.choices.values()) (isOnly ? this.tools : choice.element).append(choice.engineLink());
    this.element.setAttribute("aria-busy", "false");
    this.tools.hidden = false;
  }

  fail(message) {
    const kept = build("p", {}, "What had come until then is kept.");
    this.tools.before(build("div", { class: "notice bad", role: "alert" }, build("p", {}, message), kept));
    this.end("an error");
  }

  choice(index) {
    if (!this.choices.has(index)) {
      const choice = new ChoiceView(this, index, (this.request.body.n ?? 1) > 1);
      this.choices.set(index, choice);
      const later = [...this.body.children].find((each) => Number(each.dataset.index) > index);
      this.body.insertBefore(choice.element, later ?? null);
    }
    return this.choices.get(index);
  }

  choose(index) {
    this.chosen = index;
    for (const [each, choice] of this.choices) choice.showChosen(each === index);
  }

  showPrompt(prompt) {
    this.promptTokens = new TokenList("Tokens of the prompt");
    this.promptTokens.add(prompt);
    const summary = build("summary", {}, `The prompt’s ${prompt.length} tokens`);
    this.body.before(build("details", { class: "prompt-tokens", open: true }, summary, this.promptTokens.element));
  }
}

class ChoiceView {
  constructor(answer, index, isOneOfMany) {
    this.answer = answer;
    this.index = index;
    this.text = "";
    this.tokens = null;
    this.finish = null;
    this.timings = null;
    this.felt = null;
    this.node = document.createTextNode("");
    this.shown = build("div", { class: "answer-text" }, this.node);
    this.element = build("div", { class: "choice", "data-index": index });
    if (isOneOfMany) {
      this.button = build("button", { class: "button plain choose", type: "button", "aria-pressed": String(index === answer.chosen), onclick: () => answer.choose(index) },
        `Answer ${index + 1}`);
      this.element.append(this.button);
    }
    this.element.append(this.shown);
  }

  add({ text, tokens, finish, stopReason, timings }) {
    this.felt ??= (performance.now() - this.answer.started) / 1000;
    this.text += text;
    this.node.appendData(text);
    if (tokens.length > 0) this.addTokens(tokens);
    if (finish !== null) this.finish = stopReason === null ? finish : `${finish}: ${JSON.stringify(stopReason)}`;
    this.timings = timings ?? this.timings;
  }

  addTokens(scored) {
    if (this.tokens === null) {
      this.tokens = new TokenList("Tokens of the answer");
      this.element.append(this.tokens.element, surpriseLegend());
      this.element.classList.add("has-tokens");
    }
    this.tokens.add(scored);
  }

  end({ ending, seconds, usage, isOnly }) {
    const tokens = isOnly && usage !== null ? usage.completion_tokens : this.tokens?.tokens.length ?? null;
    const { timings, felt } = this;
    this.element.append(timingsView({ timings, felt, seconds, tokens, usage: isOnly ? usage : null, ending: this.finish ?? ending }));
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
