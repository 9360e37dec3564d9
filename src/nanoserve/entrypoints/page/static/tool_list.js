// Tools as the interface takes them: what is wrong with a list of them, and an example.

import { schemaFault } from "./schema_shape.js";

const NAME = /^[\p{L}\p{N}_\-.:/]{1,128}$/u;
const MEMBERS = { name: "string", description: "string", parameters: "object", strict: "boolean" };
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export const TOOLS_EXAMPLE = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "Says what the weather will be.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, days: { type: "integer", minimum: 1 } },
        required: ["city"],
      },
    },
  },
];

/** The first thing that is wrong; null where nothing is. @param {unknown} tools */
export function toolsFault(tools) {
  if (!Array.isArray(tools)) return "must be a list of tools, in [ and ]";
  const names = new Set();
  for (const [place, tool] of tools.entries()) {
    const fault = toolFault(tool, `[${place}]`);
    if (fault !== null) return fault;
    if (names.has(tool.function.name)) return `[${place}].function.name: ${JSON.stringify(tool.function.name)} is the name of two tools`;
    names.add(tool.function.name);
  }
  return null;
}

function toolFault(tool, path) {
  if (!isObject(tool)) return `${path} must be an object`;
  if (tool.type !== "function") return `${path}.type must be "function"`;
  const described = tool.function;
  if (!isObject(described)) return `${path}.function must be an object with name, description and parameters`;
  for (const [name, value] of Object.entries(described)) {
    if (!Object.hasOwn(MEMBERS, name)) return `${path}.function.${name} is not known: a function has ${Object.keys(MEMBERS).join(", ")}`;
    const isGood = value === null ? name !== "name" : MEMBERS[name] === "object" ? isObject(value) : typeof value === MEMBERS[name];
    if (!isGood) return `${path}.function.${name} must be ${{ string: "a text", object: "a schema", boolean: "true or false" }[MEMBERS[name]]}`;
  }
  if (!NAME.test(described.name ?? "")) return `${path}.function.name must have 1 to 128 letters, digits and _-.:/`;
  if ((described.parameters ?? null) === null) return null;
  if ((described.parameters.type ?? "object") !== "object") return `${path}.function.parameters must be the schema of an object`;
  return schemaFault(described.parameters, `${path}.function.parameters`);
}
