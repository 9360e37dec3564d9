// Every parameter that the server honours: how it is called, what it takes, and what holds where it is left out.
// The server checks the values and names the field at fault; nothing is checked twice here.

/**
 * @typedef {object} Parameter
 * @property {string} name as in the request's body
 * @property {string} label
 * @property {"number" | "integer" | "switch" | "text" | "texts" | "ids" | "biases"} kind
 * @property {string} group where it stands; "common" is always visible
 * @property {unknown} fallback what holds where neither the request nor the model says anything; null shows nothing
 * @property {"chat" | "completion"} [only] the one kind of request that takes it
 * @property {number} [step] of a number
 * @property {string} [hint]
 */

/** @type {readonly Parameter[]} */
export const PARAMETERS = [
  { name: "temperature", label: "Temperature", kind: "number", group: "common", fallback: 1, step: 0.1, hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", kind: "number", group: "common", fallback: 1, step: 0.05 },
  { name: "max_tokens", label: "Max tokens", kind: "integer", group: "common", fallback: { chat: "what fits", completion: 16 } },
  { name: "seed", label: "Seed", kind: "integer", group: "common", fallback: "drawn", hint: "the same seed, the same answer" },
  { name: "n", label: "Answers", kind: "integer", group: "common", fallback: 1, hint: "n: that many answers to one prompt" },
  { name: "top_k", label: "Top k", kind: "integer", group: "common", fallback: 0, hint: "0 keeps all" },

  { name: "min_p", label: "Min p", kind: "number", group: "Sampling", fallback: 0, step: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", kind: "number", group: "Sampling", fallback: 0, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number", group: "Sampling", fallback: 0, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "number", group: "Sampling", fallback: 1, step: 0.1 },

  { name: "stop", label: "Stop strings", kind: "texts", group: "Stopping", fallback: null, hint: "one on each line; \\n is a line break" },
  { name: "stop_token_ids", label: "Stop token ids", kind: "ids", group: "Stopping", fallback: null },
  { name: "min_tokens", label: "Min tokens", kind: "integer", group: "Stopping", fallback: 0 },
  { name: "ignore_eos", label: "Ignore end of sequence", kind: "switch", group: "Stopping", fallback: false },
  { name: "include_stop_str_in_output", label: "Keep the stop string", kind: "switch", group: "Stopping", fallback: false },

  { name: "logit_bias", label: "Logit bias", kind: "biases", group: "What may be said", fallback: null, hint: "token id: bias, one on each line" },
  { name: "allowed_token_ids", label: "Allowed token ids", kind: "ids", group: "What may be said", fallback: null },
  { name: "bad_words", label: "Bad words", kind: "texts", group: "What may be said", fallback: null, hint: "one on each line" },
  { name: "skip_special_tokens", label: "Skip special tokens", kind: "switch", group: "What may be said", fallback: true },

  { name: "truncate_prompt_tokens", label: "Keep last prompt tokens", kind: "integer", group: "Prompt", fallback: "all", hint: "cuts a prompt that is too long" },
  { name: "add_special_tokens", label: "Add special tokens", kind: "switch", group: "Prompt", fallback: true, only: "completion" },
  { name: "echo", label: "Repeat the prompt", kind: "switch", group: "Prompt", fallback: false, only: "completion" },
  { name: "add_generation_prompt", label: "Add generation prompt", kind: "switch", group: "Prompt", fallback: true, only: "chat" },
  { name: "cache_salt", label: "Cache salt", kind: "text", group: "Prompt", fallback: null, hint: "shares prefixes with the same salt only" },

  { name: "priority", label: "Priority", kind: "integer", group: "Scheduling", fallback: 0, hint: "lower runs first, with --policy priority" },
  { name: "request_id", label: "Request id", kind: "text", group: "Scheduling", fallback: null, hint: "for the server's log" },
];

const ESCAPES = { n: "\n", t: "\t", r: "\r", "\\": "\\" };
const PARSERS = { number: parseNumber, integer: parseInteger, text: (text) => text, texts: parseTexts, ids: parseIds, biases: parseBiases };

/**
 * The value that a text field stands for; undefined where it is empty. Throws Error with what is wrong.
 * @param {string} kind of a Parameter, switches apart
 * @param {string} text
 */
export function parseValue(kind, text) {
  return text.trim() === "" ? undefined : PARSERS[kind](text);
}

function parseNumber(text) {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`must be a number, got ${text.trim()}`);
  return value;
}

function parseInteger(text) {
  const value = parseNumber(text);
  if (!Number.isInteger(value)) throw new Error(`must be a whole number, got ${text.trim()}`);
  if (!Number.isSafeInteger(value)) throw new Error("is larger than a browser can write exactly (2^53)");
  return value;
}

function parseTexts(text) {
  const unescaped = (line) => line.replace(/\\([ntr\\])/g, (_, letter) => ESCAPES[letter]);
  return text.split("\n").filter((line) => line !== "").map(unescaped);
}

function parseIds(text) {
  return text.split(/[\s,]+/).filter((each) => each !== "").map(parseInteger);
}

function parseBiases(text) {
  const pairs = text.split(/[\n,]+/).filter((line) => line.trim() !== "").map((line) => line.split(":"));
  if (pairs.some((pair) => pair.length !== 2)) throw new Error("takes lines such as 42: -5");
  return Object.fromEntries(pairs.map(([token, bias]) => [String(parseInteger(token)), parseNumber(bias)]));
}
