// One answer in the transcript while it grows: its choices, its prompt's tokens, and how it failed.

import { apiUrl } from "./api.js";
import { ChoiceView } from "./choice.js";
import { copyButton } from "./copying.js";
import { build } from "./dom.js";
import { asCurl, asPython } from "./snippets.js";
import { TokenList } from "./tokens.js";

/** The answer to one request, which may have several choices. */
export class AnswerView {
  /**
   * @param {import("./requests.js").ApiRequest} request
   * @param {{hasKey: () => boolean, onAgain: () => void, onResults: () => boolean, showRow: (engineId: string, index: number) => boolean}} options
   *   `onResults` goes on with the results of the calls, false where it cannot; `showRow` brings an answer's row in the engine into sight,
   *   false where there is none any more
   */
  constructor(request, { hasKey, onAgain, onResults, showRow }) {
    this.request = request;
    this.onResults = onResults;
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

  /** The answer as the conversation keeps it, with the results of its calls where they were sent. */
  messages(options) {
    return this.choices.get(this.chosen)?.messages(options) ?? [];
  }

  /** What there is to say of it beside its text, for those who hear it. */
  get outcome() {
    return this.choices.get(this.chosen)?.outcome ?? "";
  }

  /** The results of the calls did not get through. */
  takeResultsBack() {
    this.choices.get(this.chosen)?.calls.setAnswered(false);
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
