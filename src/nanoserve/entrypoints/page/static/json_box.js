// A box for JSON: what is wrong with it stands beneath as it is typed, and its summary says what it holds while it is folded.

import { byId } from "./dom.js";
import { JsonProblem, readJson } from "./json_text.js";
import { FieldProblem } from "./parameter_form.js";

export class JsonBox {
  /**
   * @param {string} id of the text area; ID-details, ID-state, ID-problem, ID-note and ID-example belong to it
   * @param {object} options
   * @param {string} options.param what the request calls it
   * @param {unknown} options.example
   * @param {(value: unknown) => string | null} options.fault what is wrong with a value that is JSON
   * @param {(value: unknown) => {state: string, note: string}} options.describe what a good value holds, in few words and in a sentence
   * @param {() => void} onChange
   */
  constructor(id, { param, example, fault, describe }, onChange) {
    this.param = param;
    this.fault = fault;
    this.describe = describe;
    this.input = byId(id);
    this.details = byId(`${id}-details`);
    this.state = byId(`${id}-state`);
    this.problem = byId(`${id}-problem`);
    this.note = byId(`${id}-note`);
    this.example = byId(`${id}-example`);
    this.rest = this.note.textContent;
    this.input.addEventListener("input", () => {
      this.check();
      onChange();
    });
    this.example.addEventListener("click", () => {
      this.input.value = JSON.stringify(example, null, 2);
      this.input.dispatchEvent(new Event("input"));
      this.input.focus();
      this.input.setSelectionRange(0, 0);
      this.input.scrollTop = 0;
    });
  }

  /** The value; undefined where the box is empty. Throws FieldProblem. */
  read() {
    if (this.input.value.trim() === "") return undefined;
    let value;
    try {
      value = readJson(this.input.value);
    } catch (error) {
      if (error instanceof JsonProblem) throw new FieldProblem(this.param, error.message);
      throw error;
    }
    const fault = this.fault(value);
    if (fault !== null) throw new FieldProblem(this.param, fault);
    return value;
  }

  /** Say what is wrong, or what there is; the value where there is a good one. */
  check() {
    this.example.hidden = this.input.value.trim() !== "";
    try {
      const value = this.read();
      const { state, note } = value === undefined ? { state: "", note: this.rest } : this.describe(value);
      this.show("", state, note);
      return value;
    } catch (error) {
      if (!(error instanceof FieldProblem)) throw error;
      this.show(error.reason, "has a fault", "");
      return undefined;
    }
  }

  /** Show what the server says of it, and go there. */
  showProblem(message) {
    this.details.open = true;
    this.show(message, "was refused", "");
    this.input.focus();
  }

  show(problem, state, note) {
    this.problem.textContent = problem;
    this.note.textContent = note;
    this.state.textContent = state;
    this.state.classList.toggle("bad", problem !== "");
    if (problem === "") this.input.removeAttribute("aria-invalid");
    else this.input.setAttribute("aria-invalid", "true");
  }
}
