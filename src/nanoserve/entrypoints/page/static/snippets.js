// A request as a command and as a program: what is copied does exactly what the page does. The key stays in the environment.

const CLIENT_FIELDS = new Set([
  "model", "messages", "prompt", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n", "stop",
  "logit_bias", "logprobs", "top_logprobs", "echo", "stream", "stream_options", "tools", "tool_choice", "response_format",
]);
const CHAT_FIELDS = new Set(["tools", "tool_choice", "response_format"]);
const WIDTH = 88;

/**
 * @param {import("./requests.js").ApiRequest} request
 * @param {string} url of the route
 * @param {boolean} hasKey whether the server wants one
 */
export function asCurl(request, url, hasKey) {
  const lines = [`curl --no-buffer ${shellQuoted(url)}`, "  -H 'content-type: application/json'"];
  if (hasKey) lines.push('  -H "authorization: Bearer $NANOSERVE_API_KEY"');
  lines.push(`  -d ${shellQuoted(JSON.stringify(request.body, null, 2))}`);
  return lines.join(" \\\n");
}

/** The same for the `openai` package; the fields that it does not know go into extra_body. */
export function asPython(request, url, hasKey) {
  const isChat = request.mode === "chat";
  const fields = Object.entries(request.body);
  const known = fields.filter(([name]) => isClientField(name, isChat));
  const extra = fields.filter(([name]) => !isClientField(name, isChat));
  const lines = known.map(([name, value]) => `    ${name}=${pythonLiteral(value, 1)},`);
  if (extra.length > 0) lines.push(`    extra_body=${pythonLiteral(Object.fromEntries(extra), 1)},`);
  const key = hasKey ? 'os.environ["NANOSERVE_API_KEY"]' : 'os.environ.get("NANOSERVE_API_KEY", "none")';
  const call = isChat ? "client.chat.completions.create" : "client.completions.create";
  const text = isChat ? "choice.delta.content" : "choice.text";
  return [
    "import os", "", "from openai import OpenAI", "",
    `client = OpenAI(base_url=${JSON.stringify(url.replace(/\/(chat\/)?completions$/, ""))}, api_key=${key})`,
    `stream = ${call}(`, ...lines, ")",
    ...((request.body.n ?? 1) > 1 ? printAll(text) : printOne(text, request.body.tools !== undefined)), "",
  ].join("\n");
}

function isClientField(name, isChat) {
  return CLIENT_FIELDS.has(name) && !(isChat ? name === "echo" : CHAT_FIELDS.has(name));
}

function printOne(text, callsTools) {
  const calls = ["        for call in choice.delta.tool_calls or []:", '            print(call.function.name or "", call.function.arguments or "", end="", flush=True)'];
  return [
    "for chunk in stream:", "    for choice in chunk.choices:", `        print(${text} or "", end="", flush=True)`, ...(callsTools ? calls : []), "print()",
  ];
}

function printAll(text) {
  return [
    "answers: dict[int, str] = {}", "for chunk in stream:", "    for choice in chunk.choices:",
    `        answers[choice.index] = answers.get(choice.index, "") + (${text} or "")`,
    "for index in sorted(answers):", '    print(f"[{index}] {answers[index]}")',
  ];
}

function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function pythonLiteral(value, depth) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value); // JSON's strings and numbers are Python's too
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((each) => pythonLiteral(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonLiteral(each, depth + 1)}`);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  const inLine = open + parts.join(", ") + close;
  if (inLine.length + 4 * depth <= WIDTH && !inLine.includes("\n")) return inLine;
  const indent = "    ".repeat(depth);
  return `${open}\n${parts.map((each) => `${indent}    ${each},\n`).join("")}${indent}${close}`;
}
