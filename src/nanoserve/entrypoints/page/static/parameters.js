// Every parameter that the server honours: the sampling parameters as the server declares them, and those of the request.
// A number outside its declared range is marked as it is typed; everything else the server checks, and names the field.

import { SAMPLING } from "./sampling.js";

/**
 * @typedef {object} Parameter
 * @property {string} name as in the request's body
 * @property {string} label
 * @property {"number" | "integer" | "switch" | "text" | "texts" | "ids" | "biases"} kind
 * @property {string} group where it stands; "Common" is always visible
 * @property {unknown} fallback what holds where neither the request nor the model says anything; null shows nothing
 * @property {"chat" | "completion"} [only] the one kind of request that takes it
 * @property {number} [step] of a number
 * @property {number} [low] of a number or integer: the least
 * @property {number} [high] the most
 * @property {Record<string, unknown>} [own] by the kind of request, what the page sends where the field is empty
 * @property {string} [hint] shown below it
 * @property {string} [meaning] shown where one points at it
 */

/** What the page says where the declaration gives a parameter no value of its own. @type {Record<string, unknown>} */
const FALLBACKS = { seed: "drawn", max_tokens: { chat: "what fits" } };

/** What the page sends in an empty field's place: OpenAI's own 16 tokens end in the middle of a sentence. */
const OWN_VALUES = { max_tokens: { completion: 128 } };

/** How lists are written. @type {Record<string, string>} */
const NOTATIONS = { texts: "one on each line; \\n is a line break", ids: "with commas between them", biases: "token id: bias, one on each line" };

/** @type {readonly Parameter[]} */
export const PARAMETERS = [
  ...SAMPLING.map((each) => ({ ...each, hint: NOTATIONS[each.kind] ?? each.hint, meaning: each.hint, fallback: FALLBACKS[each.name] ?? each.fallback, own: OWN_VALUES[each.name] })),

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
 * @param {{kind: string, low?: number, high?: number}} parameter no switch
 * @param {string} text
 */
export function parseValue({ kind, low = null, high = null }, text) {
  if (text.trim() === "") return undefined;
  const value = PARSERS[kind](text);
  if ((low !== null && value < low) || (high !== null && value > high)) throw new Error(`must be from ${low} to ${high}, got ${text.trim()}`);
  return value;
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
