// The parts of an answer while they grow: what the model says, and what it thinks before that, folded once it has thought.

import { build } from "./dom.js";
import { TokenList } from "./tokens.js";

/** A text as it comes, and its tokens where they come with it. */
class GrowingText {
  constructor(kind, label) {
    this.label = label;
    this.text = "";
    this.node = document.createTextNode("");
    this.tokens = null;
    this.element = build("div", { class: "part" }, build("div", { class: `grown ${kind}` }, this.node));
  }

  add(text) {
    this.text += text;
    this.node.appendData(text);
  }

  addTokens(scored) {
    if (this.tokens === null) {
      this.tokens = new TokenList(this.label);
      this.element.append(this.tokens.element);
      this.element.classList.add("scored");
    }
    this.tokens.add(scored);
  }
}

/** What the model says. */
export class TextPart extends GrowingText {
  constructor() {
    super("answer-text", "Tokens of the answer");
  }

  /** It is followed by something, or was the last. */
  end() {}
}

/** What the model thinks: open while it grows, unless the reader would rather not. */
export class ReasoningPart extends GrowingText {
  constructor() {
    super("thought", "Tokens of the reasoning");
    this.count = 0;
    this.isChosen = false;
    this.summary = build("summary", { onclick: () => (this.isChosen = true) }, "Thinking");
    this.details = build("details", { class: "reasoning", open: true }, this.summary, ...this.element.childNodes);
    this.element.append(this.details);
  }

  add(text) {
    super.add(text);
    this.count += 1;
  }

  addTokens(scored) {
    super.addTokens(scored);
    this.details.append(this.tokens.element);
  }

  /** Fold it, unless the reader has opened or closed it, or is in it. */
  end() {
    this.showCount(this.count);
    const isInside = this.details.contains(document.activeElement) && document.activeElement !== this.summary;
    if (!this.isChosen && !isInside) this.details.open = false;
  }

  /** @param {number} tokens as far as they are known: pieces while it grows, counted by the server at the end */
  showCount(tokens) {
    this.summary.textContent = `Thought for ${tokens} token${tokens === 1 ? "" : "s"}`;
  }
}
