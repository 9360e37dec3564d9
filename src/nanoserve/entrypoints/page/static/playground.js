// The playground: a conversation or a completion, with every parameter, as one request at a time.

import { announce, SpokenText } from "./announcer.js";
import { AnswerView } from "./answer.js";
import { ApiError, apiUrl } from "./api.js";
import { wireCopyButton } from "./copying.js";
import { build, byId } from "./dom.js";
import { generate } from "./generation.js";
import { getKey } from "./keys.js";
import { Pacer } from "./pacing.js";
import { FieldProblem, ParameterForm } from "./parameter_form.js";
import { followQueue } from "./queue_note.js";
import { makeRequest } from "./requests.js";
import { loadServer } from "./server.js";
import { asCurl, asPython } from "./snippets.js";
import { TokenOptions } from "./token_options.js";
import { followingEnd, Transcript } from "./transcript.js";

const EXAMPLES = {
  chat: ["Tell me a story about a fox and a lamp.", "What is the colour of the sky?", "Write a short poem about the sea."],
  completion: ["Once upon a time", "One morning the old clock"],
};
const TEXTS = {
  chat: { label: "Message", hint: "Enter sends, Shift+Enter is a new line", placeholder: "Say something" },
  completion: { label: "Prompt", hint: "Ctrl+Enter sends", placeholder: "A text to be continued" },
};

/**
 * Bring the playground to life; its elements are in the page already.
 * @param {{requests: import("./engine/own_requests.js").OwnRequests, showRow: (engineId: string, index: number) => boolean}} engine
 */
export function mountPlayground(engine) {
  new Playground(engine).start();
}

class Playground {
  constructor(engine) {
    this.engine = engine;
    this.prompt = byId("prompt");
    this.transcript = new Transcript();
    this.form = new ParameterForm(byId("parameter-form"), () => this.showCode());
    this.tokenOptions = new TokenOptions(() => this.showCode());
    this.server = null;
    this.running = null;
  }

  async start() {
    this.wire();
    this.showMode();
    this.server = await loadServer();
    const model = byId("model");
    model.replaceChildren(...this.server.models.map((name) => build("option", { value: name }, name)));
    byId("model-field").hidden = this.server.models.length < 2;
    this.showMode();
  }

  wire() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("parameter-form").addEventListener("submit", (event) => event.preventDefault());
    this.prompt.addEventListener("keydown", (event) => {
      const sends = event.key === "Enter" && !event.isComposing && (this.mode === "chat" ? !event.shiftKey : event.ctrlKey || event.metaKey);
      if (!sends) return;
      event.preventDefault();
      this.send();
    });
    // Each of them appears where the other one was: the second click of a double click is not meant for it.
    byId("send").addEventListener("click", (event) => event.detail > 1 && event.preventDefault());
    byId("stop").addEventListener("click", (event) => event.detail > 1 || this.running?.abort());
    byId("new-conversation").addEventListener("click", () => this.startOver());
    byId("reset-parameters").addEventListener("click", () => {
      this.form.clear();
      this.showCode();
    });
    for (const id of ["mode-chat", "mode-completion"]) byId(id).addEventListener("change", () => this.showMode());
    for (const id of ["code-curl", "code-python"]) byId(id).addEventListener("change", () => this.showCode());
    for (const id of ["prompt", "system"]) byId(id).addEventListener("input", () => this.showCode());
    byId("model").addEventListener("change", () => this.showCode());
    byId("request-code").addEventListener("toggle", () => this.showCode());
    wireCopyButton(byId("copy-request"), () => this.code());
    if (window.matchMedia("(max-width: 60rem)").matches) byId("parameter-sheet").open = false;
  }

  get mode() {
    return byId("mode-chat").checked ? "chat" : "completion";
  }

  showMode() {
    const { label, hint, placeholder } = TEXTS[this.mode];
    byId("prompt-label").textContent = label;
    byId("send-hint").textContent = hint;
    this.prompt.placeholder = placeholder;
    byId("system-details").hidden = this.mode !== "chat";
    this.form.showFor(this.mode, this.server?.default_sampling ?? {}, this.server?.default_sampling_origin ?? "");
    this.transcript.show(this.mode);
    this.showBlank();
    this.showCode();
  }

  /** What stands where nothing was said yet. */
  showBlank() {
    const blank = byId("blank");
    blank.hidden = !this.transcript.isEmpty;
    byId("new-conversation").textContent = this.mode === "chat" ? "New conversation" : "Clear";
    const examples = EXAMPLES[this.mode].map((text) => build("button", { class: "example", type: "button", onclick: () => this.edit(text) }, text));
    blank.replaceChildren(build("p", {}, this.mode === "chat" ? "Talk to the model." : "Let the model go on."), ...examples);
  }

  /** The request as the page would send it now. Throws FieldProblem. */
  request(prompt, said) {
    const system = byId("system").value;
    const messages = [...(system.trim() ? [{ role: "system", content: system }] : []), ...said, { role: "user", content: prompt }];
    const model = byId("model").value || (this.server?.models[0] ?? "");
    return makeRequest({ mode: this.mode, model, messages, prompt, values: this.form.read(), ...this.tokenOptions.read() });
  }

  code() {
    try {
      const request = this.request(this.prompt.value || "…", this.transcript.messages());
      const write = byId("code-curl").checked ? asCurl : asPython;
      return write(request, apiUrl(request.path), getKey() !== null);
    } catch (error) {
      if (error instanceof FieldProblem) return error.message;
      throw error;
    }
  }

  showCode() {
    byId("transcript").classList.toggle("shows-tokens", this.tokenOptions.isOn);
    if (byId("request-code").open) byId("request-text").textContent = this.code();
  }

  send() {
    const text = this.prompt.value;
    if (this.running !== null || this.server === null) return;
    this.clearProblems();
    if (text.trim() === "") {
      this.showProblem({ message: "There is nothing to send yet." });
      return;
    }
    try {
      const request = this.request(text, this.transcript.messages());
      if (this.mode === "chat") this.prompt.value = "";
      const user = this.transcript.addUser(text, (turn, said) => this.edit(said, turn));
      this.run(request, user, text);
    } catch (error) {
      if (!(error instanceof FieldProblem)) throw error;
      this.showProblem(error);
    }
  }

  /** Send, show what comes, and take everything back where nothing came. */
  async run(request, user, text) {
    const again = () => this.again(turn, user, text);
    const view = new AnswerView(request, { hasKey: () => getKey() !== null, onAgain: again, showRow: this.engine.showRow });
    const turn = this.transcript.addAnswer(view);
    const spoken = new SpokenText();
    const pacer = new Pacer((chunks) => followingEnd(() => chunks.forEach((chunk) => view.add(chunk))));
    this.showBlank();
    this.setRunning(new AbortController());
    announce("Answering");
    const endWait = followQueue(this.engine.requests, view);
    try {
      for await (const chunk of generate(request, this.running.signal, (engineId) => (view.engineId = engineId))) {
        endWait();
        pacer.add(chunk);
        for (const { index, text: piece } of chunk.additions) if (index === 0) spoken.add(piece);
      }
      pacer.flush();
      followingEnd(() => view.end());
      spoken.end("");
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error;
      pacer.flush();
      if (view.isEmpty) this.takeBack(user, text, error);
      else if (error.name === "AbortError") view.end("you");
      else view.fail(error.message);
      if (error.name === "AbortError") spoken.end("Stopped.");
    } finally {
      endWait();
      this.setRunning(null);
      this.showCode();
    }
  }

  takeBack(user, text, error) {
    if (!this.transcript.removeFrom(user)) return;
    this.prompt.value = text;
    this.showBlank();
    if (error.name !== "AbortError") this.showProblem(error);
  }

  again(turn, user, text) {
    if (this.running !== null) return;
    this.clearProblems();
    try {
      const request = this.request(text, this.transcript.messages(user));
      this.transcript.removeFrom(turn);
      this.run(request, user, text);
    } catch (error) {
      if (!(error instanceof FieldProblem)) throw error;
      this.showProblem(error);
    }
  }

  edit(text, turn = null) {
    if (this.running !== null) return;
    if (turn !== null) this.transcript.removeFrom(turn);
    this.prompt.value = text;
    this.prompt.focus();
    this.showBlank();
    this.showCode();
  }

  startOver() {
    this.running?.abort();
    this.transcript.clear();
    this.clearProblems();
    this.showBlank();
    this.showCode();
    this.prompt.focus();
  }

  setRunning(controller) {
    this.running = controller;
    const stop = byId("stop");
    const hadFocus = document.activeElement === stop || document.activeElement === byId("send");
    stop.hidden = controller === null;
    byId("send").hidden = controller !== null;
    if (hadFocus) (controller === null ? this.prompt : stop).focus();
    for (const id of ["mode-chat", "mode-completion"]) byId(id).disabled = controller !== null;
  }

  clearProblems() {
    this.form.clearProblems();
    byId("composer-problem").textContent = "";
    this.tokenOptions.clearProblem();
  }

  /** At the field that the server, or its form, named; else beneath the text. */
  showProblem({ message, param = null, retryAfter = null }) {
    const isTold = retryAfter === null || message.includes(`${retryAfter} s`);
    byId("composer-problem").textContent = isTold ? message : `${message} (again in ${retryAfter} s)`;
    if (param !== null) byId("parameter-sheet").open = true;
    const isShown = param !== null && (this.tokenOptions.showProblem(param, message) || this.form.showProblem(param, message));
    if (!isShown) this.prompt.focus();
  }
}
