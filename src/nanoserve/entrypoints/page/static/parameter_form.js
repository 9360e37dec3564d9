// The fields of the sampling parameters, made from their table: defaults shown, values read, faults shown where they are.

import { build, byId } from "./dom.js";
import { PARAMETERS, parseValue } from "./parameters.js";

const WIDE_KINDS = new Set(["text", "texts", "ids", "biases"]);
const LINES = new Set(["texts", "biases"]);

/** The form inside an element: the common fields, and the others in a disclosure. */
export class ParameterForm {
  constructor(element, onChange) {
    this.fields = PARAMETERS.map((parameter) => new Field(parameter));
    this.more = build("details", { class: "more", id: "more-parameters" }, build("summary", {}, "More parameters"));
    element.append(this.group("Common"), this.more);
    for (const name of new Set(PARAMETERS.map((each) => each.group))) {
      if (name === "Common") continue;
      this.more.append(build("h2", {}, name), this.group(name));
    }
    for (const field of this.fields) field.input.addEventListener("input", () => field.check());
    byId("reset-parameters").addEventListener("click", () => {
      this.clear();
      onChange();
    });
    element.addEventListener("submit", (event) => event.preventDefault());
    element.addEventListener("input", onChange);
    element.addEventListener("change", onChange);
  }

  group(name) {
    const members = this.fields.filter((field) => field.parameter.group === name);
    return build("div", { class: "fields" }, ...members.map((field) => field.element));
  }

  /** Show the fields that this kind of request takes, and the defaults that hold for it. */
  showFor(mode, defaults, origin) {
    this.mode = mode;
    for (const field of this.fields) field.showFor(mode, defaults, origin);
  }

  /** The values that were set, by name. Throws FieldProblem for the first that cannot be read. */
  read() {
    const taken = this.fields.filter((field) => field.takes(this.mode));
    const values = taken.map((field) => [field.parameter.name, field.read()]);
    return Object.fromEntries(values.filter(([, value]) => value !== undefined));
  }

  clear() {
    for (const field of this.fields) field.clear();
  }

  clearProblems() {
    for (const field of this.fields) field.showProblem("");
  }

  /** Show a fault at its field and go there; false where no field has this name. */
  showProblem(name, message) {
    const field = this.fields.find((each) => each.parameter.name === name && each.takes(this.mode));
    if (field === undefined) return false;
    if (field.parameter.group !== "Common") this.more.open = true;
    field.showProblem(message);
    field.input.focus();
    return true;
  }
}

/** A text that is not a value; `param` names the field. */
export class FieldProblem extends Error {
  constructor(param, message) {
    super(`${param}: ${message}`);
    this.param = param;
    this.reason = message;
  }
}

class Field {
  constructor(parameter) {
    this.parameter = parameter;
    this.default = parameter.fallback;
    const id = `p-${parameter.name}`;
    this.problem = build("p", { class: "problem", id: `${id}-problem` });
    this.shown = build("span", { class: "visually-hidden", id: `${id}-default` });
    const hint = parameter.hint === undefined ? null : build("span", { class: "hint", id: `${id}-hint` }, parameter.hint);
    const described = [`${id}-default`, hint && `${id}-hint`, `${id}-problem`].filter(Boolean).join(" ");
    this.input = makeInput(parameter, { id, name: parameter.name, "aria-describedby": described });
    const title = [parameter.name, parameter.meaning].filter(Boolean).join(": ");
    const label = build("label", { for: id, title }, parameter.label);
    const isWide = WIDE_KINDS.has(parameter.kind);
    this.element = parameter.kind === "switch"
      ? build("div", { class: "field switch" }, this.input, label, this.shown, this.problem)
      : build("div", { class: isWide ? "field wide" : "field" }, label, this.shown, this.input, hint, this.problem);
  }

  takes(mode) {
    return this.parameter.only === undefined || this.parameter.only === mode;
  }

  showFor(mode, defaults, origin) {
    const { name, fallback, kind } = this.parameter;
    const own = typeof fallback === "object" && fallback !== null ? fallback[mode] : fallback;
    const before = this.default;
    this.mode = mode;
    this.default = defaults[name] ?? this.parameter.own?.[mode] ?? own;
    this.element.hidden = !this.takes(mode);
    if (kind === "switch") {
      if (this.input.checked === before) this.input.checked = this.default;
      return;
    }
    if (this.default === null) return;
    this.input.placeholder = String(this.default);
    this.shown.textContent = `left out: ${this.default}`;
    this.input.title = name in defaults ? `Left out, it is the model's own: ${this.default}, from ${origin}` : "";
  }

  read() {
    if (this.parameter.kind === "switch") return this.input.checked === this.default ? undefined : this.input.checked;
    const { name, own } = this.parameter;
    if (this.input.validity.badInput) throw new FieldProblem(name, "must be a number");
    try {
      return parseValue(this.parameter, this.input.value) ?? own?.[this.mode];
    } catch (error) {
      throw new FieldProblem(name, error.message);
    }
  }

  /** Mark what cannot be, as it is typed. */
  check() {
    try {
      this.read();
      this.showProblem("");
    } catch (error) {
      if (!(error instanceof FieldProblem)) throw error;
      this.showProblem(error.reason);
    }
  }

  clear() {
    if (this.parameter.kind === "switch") this.input.checked = this.default;
    else this.input.value = "";
    this.showProblem("");
  }

  showProblem(message) {
    this.problem.textContent = message;
    if (message === "") this.input.removeAttribute("aria-invalid");
    else this.input.setAttribute("aria-invalid", "true");
  }
}

function makeInput(parameter, attributes) {
  const { kind, step, fallback } = parameter;
  if (kind === "switch") {
    const input = build("input", { ...attributes, type: "checkbox" });
    input.checked = fallback;
    return input;
  }
  const plain = { ...attributes, autocomplete: "off", spellcheck: "false" };
  if (LINES.has(kind)) return build("textarea", { ...plain, rows: 2 });
  if (kind === "number" || kind === "integer") return build("input", { ...plain, type: "number", step: step ?? (kind === "integer" ? 1 : "any") });
  return build("input", { ...plain, type: "text" });
}
