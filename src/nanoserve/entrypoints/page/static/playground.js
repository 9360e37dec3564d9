// The playground: a conversation or a completion, with every parameter, as one request at a time.

import { announce, SpokenText } from "./announcer.js";
import { AnswerView } from "./answer.js";
import { ApiError } from "./api.js";
import { CodePanel } from "./code_panel.js";
import { build, byId } from "./dom.js";
import { generate } from "./generation.js";
import { getKey } from "./keys.js";
import { showBlank, showTexts } from "./modes.js";
import { Pacer } from "./pacing.js";
import { FieldProblem, ParameterForm } from "./parameter_form.js";
import { followQueue } from "./queue_note.js";
import { RequestBoxes } from "./request_boxes.js";
import { makeRequest } from "./requests.js";
import { loadServer } from "./server.js";
import { TokenOptions } from "./token_options.js";
import { Transcript } from "./transcript.js";

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
    this.boxes = new RequestBoxes(() => this.showCode());
    this.codePanel = new CodePanel(() => this.request(this.prompt.value || "…", this.said(this.prompt.value || "…")));
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
    for (const id of ["mode-chat", "mode-completion"]) byId(id).addEventListener("change", () => this.showMode());
    for (const id of ["prompt", "system"]) byId(id).addEventListener("input", () => this.showCode());
    byId("model").addEventListener("change", () => this.showCode());
    if (window.matchMedia("(max-width: 60rem)").matches) byId("parameter-sheet").open = false;
  }

  get mode() {
    return byId("mode-chat").checked ? "chat" : "completion";
  }

  showMode() {
    showTexts(this.mode);
    this.boxes.showFor(this.mode);
    this.form.showFor(this.mode, this.server?.default_sampling ?? {}, this.server?.default_sampling_origin ?? "");
    this.transcript.show(this.mode);
    this.showBlank();
    this.showCode();
  }

  /** What stands where nothing was said yet. */
  showBlank() {
    showBlank(this.mode, { isEmpty: this.transcript.isEmpty, onExample: (text) => this.edit(text) });
  }

  /** What was said so far, and a message after it. */
  said(text) {
    return [...this.transcript.messages(), { role: "user", content: text }];
  }

  /** The request as the page would send it now. Throws FieldProblem. */
  request(prompt, said) {
    const system = byId("system").value;
    const messages = [...(system.trim() ? [{ role: "system", content: system }] : []), ...said];
    const model = byId("model").value || (this.server?.models[0] ?? "");
    return makeRequest({ mode: this.mode, model, messages, prompt, shape: this.boxes.read(), values: this.form.read(), ...this.tokenOptions.read() });
  }

  showCode() {
    byId("transcript").classList.toggle("shows-tokens", this.tokenOptions.isOn);
    this.codePanel.show();
  }

  send() {
    const text = this.prompt.value;
    if (this.running !== null || this.server === null) return;
    this.clearProblems();
    if (text.trim() === "") {
      this.showProblem({ message: "There is nothing to send yet." });
      return;
    }
    this.attempt(() => {
      const request = this.request(text, this.said(text));
      if (this.mode === "chat") this.prompt.value = "";
      const user = this.transcript.addUser(text, (turn, before) => this.edit(before, turn));
      this.run(request, text, (error) => this.takeBack(user, text, error));
    });
  }

  /** Do something with the fields' values; false where one of them is wrong, which is shown. */
  attempt(work) {
    this.clearProblems();
    try {
      work();
      return true;
    } catch (error) {
      if (!(error instanceof FieldProblem)) throw error;
      this.showProblem(error);
      return false;
    }
  }

  /** Send and show what comes; `takeBack` is called with the error where nothing came. */
  async run(request, text, takeBack) {
    const view = new AnswerView(request, {
      hasKey: () => getKey() !== null,
      onAgain: () => this.again(turn, text, takeBack),
      onResults: () => this.goOn(turn, view),
      showRow: this.engine.showRow,
    });
    const turn = this.transcript.addAnswer(view);
    const spoken = new SpokenText();
    const pacer = new Pacer((chunks) => this.transcript.follow(() => chunks.forEach((chunk) => view.add(chunk))));
    this.showBlank();
    this.setRunning(new AbortController());
    announce("Answering");
    const endWait = followQueue(this.engine.requests, view);
    try {
      for await (const chunk of generate(request, this.running.signal, (engineId) => (view.engineId = engineId))) {
        endWait();
        pacer.add(chunk);
        for (const { index, text: piece } of chunk.additions) if (index === 0 && piece) spoken.add(piece);
      }
      pacer.flush();
      this.transcript.follow(() => view.end());
      spoken.end(view.outcome);
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error;
      pacer.flush();
      if (view.isEmpty) {
        this.transcript.removeFrom(turn);
        takeBack(error);
      } else if (error.name === "AbortError") view.end("you");
      else view.fail(error.message);
      if (error.name === "AbortError") spoken.end("Stopped.");
    } finally {
      endWait();
      this.setRunning(null);
      this.showCode();
    }
  }

  /** Put the text back where it was typed. */
  takeBack(user, text, error) {
    if (!this.transcript.removeFrom(user)) return;
    this.prompt.value = text;
    this.showBlank();
    if (error.name !== "AbortError") this.showProblem(error);
  }

  again(turn, text, takeBack) {
    if (this.running !== null) return;
    this.attempt(() => {
      const request = this.request(text, this.transcript.messages(turn));
      this.transcript.removeFrom(turn);
      this.run(request, text, takeBack);
    });
  }

  /** Go on with the results of an answer's calls, in the place of whatever came after it; false where that cannot be. */
  goOn(turn, view) {
    if (this.running !== null || !this.transcript.removeAfter(turn)) return false;
    return this.attempt(() => {
      const request = this.request("", [...this.transcript.messages(turn), ...view.messages({ withResults: true })]);
      this.prompt.focus();
      this.run(request, "", (error) => {
        view.takeResultsBack();
        if (error.name !== "AbortError") this.showProblem(error);
      });
    });
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
    this.boxes.clearProblems();
    byId("composer-problem").textContent = "";
    this.tokenOptions.clearProblem();
  }

  /** At the field that the server, or its form, named; else beneath the text. */
  showProblem({ message, param = null, retryAfter = null }) {
    const isTold = retryAfter === null || message.includes(`${retryAfter} s`);
    byId("composer-problem").textContent = isTold ? message : `${message} (again in ${retryAfter} s)`;
    if (param !== null) byId("parameter-sheet").open = true;
    const isShown = param !== null && [this.boxes, this.tokenOptions, this.form].some((each) => each.showProblem(param, message));
    if (!isShown) this.prompt.focus();
  }
}
