// The words of the two kinds of request, and what stands where nothing was said yet.

import { build, byId } from "./dom.js";

const EXAMPLES = {
  chat: ["Tell me a story about a fox and a lamp.", "What is the colour of the sky?", "Write a short poem about the sea."],
  completion: ["Once upon a time", "One morning the old clock"],
};
const TEXTS = {
  chat: { label: "Message", hint: "Enter sends, Shift+Enter is a new line", placeholder: "Say something" },
  completion: { label: "Prompt", hint: "Ctrl+Enter sends", placeholder: "A text to be continued" },
};

/** @param {"chat" | "completion"} mode */
export function showTexts(mode) {
  const { label, hint, placeholder } = TEXTS[mode];
  byId("prompt-label").textContent = label;
  byId("send-hint").textContent = hint;
  byId("prompt").placeholder = placeholder;
  byId("system-details").hidden = mode !== "chat";
}

/** Offer examples where nothing was said. */
export function showBlank(mode, { isEmpty, onExample }) {
  const blank = byId("blank");
  blank.hidden = !isEmpty;
  byId("new-conversation").textContent = mode === "chat" ? "New conversation" : "Clear";
  const examples = EXAMPLES[mode].map((text) => build("button", { class: "example", type: "button", onclick: () => onExample(text) }, text));
  blank.replaceChildren(build("p", {}, mode === "chat" ? "Talk to the model." : "Let the model go on."), ...examples);
}
