import { createInterface } from "node:readline";
import { JsonProblem, LineBreaker, readJson } from "./page/json_text.js";
import { checkValue } from "./page/schema_check.js";
import { schemaFault } from "./page/schema_shape.js";
import { toolsFault } from "./page/tool_list.js";
const asked = {
  fault(text) {
    try {
      readJson(text);
      return null;
    } catch (error) {
      if (!(error instanceof JsonProblem)) throw error;
      return error.message;
    }
  },
  lines(pieces) {
    const breaker = new LineBreaker();
    return pieces.map((piece) => breaker.add(piece));
  },
  fits: ([schema, value]) => checkValue(value, schema),
  shape: (schema) => schemaFault(schema, "$"),
  tools: toolsFault,
};
for await (const line of createInterface({ input: process.stdin })) {
  const [name, given] = JSON.parse(line);
  console.log(JSON.stringify(asked[name](given)));
}
