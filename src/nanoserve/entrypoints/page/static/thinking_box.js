// Whether and how long the model thinks before it answers: the box of thinking, which chats have.

import { byId } from "./dom.js";
import { FieldProblem } from "./parameter_form.js";

const FIELDS = /^(reasoning_effort|enable_thinking|thinking_token_budget)/;

export class ThinkingBox {
  constructor(onChange) {
    [this.details, this.effort, this.budget, this.problem, this.state] = ["thinking-details", "thinking-effort", "thinking-budget", "thinking-problem", "thinking-state"].map(byId);
    for (const box of [this.effort, this.budget]) {
      box.addEventListener("input", () => {
        this.clearProblem();
        onChange();
      });
    }
  }

  /** The fields of a request. Throws FieldProblem. */
  read() {
    const fields = {};
    const chosen = this.effort.value;
    if (chosen === "on") fields.enable_thinking = true;
    else if (chosen !== "") fields.reasoning_effort = chosen;
    const budget = this.budget.value.trim();
    if (budget !== "" || this.budget.validity.badInput) {
      if (!/^[1-9]\d{0,8}$/.test(budget)) throw new FieldProblem("thinking_token_budget", "must be a whole number of tokens, at least 1");
      fields.thinking_token_budget = Number(budget);
    }
    return fields;
  }

  /** Show a fault that the server, or the page, found here; false where it is of another box. */
  showProblem(param, message) {
    if (!FIELDS.test(param)) return false;
    this.details.open = true;
    this.problem.textContent = message;
    this.budget.setAttribute("aria-invalid", String(param === "thinking_token_budget"));
    return true;
  }

  clearProblem() {
    this.problem.textContent = "";
    this.budget.removeAttribute("aria-invalid");
    this.state.textContent = this.effort.value !== "" || this.budget.value !== "" ? "set" : "";
  }
}
