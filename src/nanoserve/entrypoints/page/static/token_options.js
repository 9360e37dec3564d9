// Whether an answer is shown token by token, with how many alternatives, and whether its prompt is scored too.

import { byId } from "./dom.js";
import { FieldProblem } from "./parameter_form.js";
import { parseValue } from "./parameters.js";

const OWN_PARAMS = new Set(["alternatives", "logprobs", "top_logprobs", "prompt_logprobs"]);

export class TokenOptions {
  constructor(onChange) {
    this.input = byId("alternatives");
    this.problem = byId("alternatives-problem");
    this.input.addEventListener("input", () => {
      this.check();
      onChange();
    });
    for (const id of ["show-tokens", "score-prompt"]) byId(id).addEventListener("change", onChange);
  }

  /** What a request asks for. Throws FieldProblem. */
  read() {
    return { alternatives: this.isOn ? this.count() : null, scoresPrompt: byId("score-prompt").checked };
  }

  get isOn() {
    return byId("show-tokens").checked;
  }

  count() {
    try {
      const { min, max, value } = this.input;
      return parseValue({ kind: "integer", low: Number(min), high: Number(max) }, value) ?? 0;
    } catch (error) {
      throw new FieldProblem("alternatives", error.message);
    }
  }

  /** Mark what cannot be, as it is typed. */
  check() {
    this.clearProblem();
    try {
      this.count();
    } catch (error) {
      this.mark(error.reason);
    }
  }

  /** Show a fault where it belongs here; false where it does not. */
  showProblem(param, message) {
    if (!OWN_PARAMS.has(param)) return false;
    this.mark(message);
    this.input.focus();
    return true;
  }

  mark(message) {
    this.problem.textContent = message;
    this.input.setAttribute("aria-invalid", "true");
  }

  clearProblem() {
    this.problem.textContent = "";
    this.input.removeAttribute("aria-invalid");
  }
}
