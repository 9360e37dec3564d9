// What an answer may do and must be: the box of tools, which of them are called, the box of the answer's schema, and that of thinking.

import { build, byId } from "./dom.js";
import { JsonBox } from "./json_box.js";
import { FieldProblem } from "./parameter_form.js";
import { schemaFault } from "./schema_shape.js";
import { ThinkingBox } from "./thinking_box.js";
import { TOOLS_EXAMPLE, toolsFault } from "./tool_list.js";

const SCHEMA_EXAMPLE = {
  type: "object",
  properties: { title: { type: "string" }, mood: { enum: ["glad", "sad"] }, pages: { type: "integer", minimum: 1 } },
  required: ["title", "mood"],
  additionalProperties: false,
};
const MODES = { auto: "if the model likes", required: "at least one", none: "none" };
const BOTH = "cannot be combined with tools that may be called: empty one of the two boxes, or let none be called";

export class RequestBoxes {
  constructor(onChange) {
    this.choice = byId("tool-choice");
    this.tools = new JsonBox("tools", { param: "tools", example: TOOLS_EXAMPLE, fault: toolsFault, describe: describeTools }, () => this.change(onChange));
    this.schema = new JsonBox("schema", { param: "response_format", example: SCHEMA_EXAMPLE, fault: (value) => this.schemaFault(value), describe: describeSchema }, onChange);
    this.thinking = new ThinkingBox(onChange);
    this.choice.addEventListener("change", () => this.change(onChange));
    this.showChoices([]);
  }

  /** Show what this kind of request takes. */
  showFor(mode) {
    this.mode = mode;
    this.tools.details.hidden = this.thinking.details.hidden = mode !== "chat";
    this.schema.check();
  }

  change(onChange) {
    this.showChoices(this.tools.check() ?? []);
    this.schema.check();
    onChange();
  }

  /** The fields of a request. Throws FieldProblem. */
  read() {
    const fields = { ...this.callFields(), ...(this.mode === "chat" ? this.thinking.read() : {}) };
    const schema = this.schema.read();
    if (schema !== undefined) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    return fields;
  }

  callFields() {
    const tools = this.mode === "chat" ? this.tools.read() ?? [] : [];
    if (tools.length === 0) return {};
    const chosen = this.choice.value;
    if (chosen === "auto") return { tools };
    return { tools, tool_choice: Object.hasOwn(MODES, chosen) ? chosen : { type: "function", function: { name: chosen.slice(1) } } };
  }

  schemaFault(value) {
    const fault = schemaFault(value, "$");
    return fault === null && this.mayCall() ? BOTH : fault;
  }

  mayCall() {
    try {
      const { tools, tool_choice: choice } = this.callFields();
      return tools !== undefined && choice !== "none";
    } catch (error) {
      if (error instanceof FieldProblem) return false;
      throw error;
    }
  }

  /** The modes, and each tool by its name; what was chosen stays where it can. */
  showChoices(tools) {
    const before = this.choice.value;
    const options = [...Object.entries(MODES), ...tools.map((tool) => [`:${tool.function.name}`, tool.function.name])];
    this.choice.replaceChildren(...options.map(([value, label]) => build("option", { value }, label)));
    this.choice.value = options.some(([value]) => value === before) ? before : "auto";
  }

  /** Show a fault at the box that the server, or the page, named; false where it is none of these. */
  showProblem(param, message) {
    if (this.thinking.showProblem(param, message)) return true;
    const box = /^tool/.test(param) ? this.tools : /^response_format/.test(param) ? this.schema : null;
    box?.showProblem(message);
    return box !== null;
  }

  clearProblems() {
    this.tools.check();
    this.schema.check();
    this.thinking.clearProblem();
  }
}

function describeTools(tools) {
  const names = tools.map((each) => each.function.name);
  const state = `${tools.length} tool${tools.length === 1 ? "" : "s"}`;
  return { state, note: names.length === 0 ? "No tool: nothing is sent." : `Sent with every message: ${names.join(", ")}.` };
}

function describeSchema(schema) {
  const needed = typeof schema === "object" ? schema.required ?? [] : [];
  const names = Object.keys(schema.properties ?? {}).map((name) => (needed.includes(name) ? name : `${name} (may be left out)`));
  const members = names.length === 0 ? "" : `, with ${names.join(", ")}`;
  return { state: "on", note: `Every answer will be JSON of this schema${members}.` };
}
