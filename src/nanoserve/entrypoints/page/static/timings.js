// Where the time of an answer went: as the engine measured it, and as it felt here.

import { build } from "./dom.js";

const PHASES = ["queue", "prefill", "decode"];

/**
 * @param {object} measured
 * @param {{queue: number | null, prefill: number | null, decode: number | null} | null} measured.timings in seconds
 * @param {number | null} measured.felt seconds from sending the request to its first token, at this end
 * @param {number} measured.seconds from sending to the end, at this end
 * @param {number | null} measured.tokens of this answer, where they are known
 * @param {object | null} measured.usage of the whole request
 * @param {string} measured.ending
 */
export function timingsView({ timings, felt, seconds, tokens, usage, ending }) {
  const facts = [];
  if (timings !== null) {
    for (const name of PHASES) facts.push([name, duration(timings[name]), `key ${name}`]);
    if (timings.prefill !== null) facts.push(["TTFT", duration(timings.queue + timings.prefill)]);
  }
  facts.push(["TTFT here", duration(felt)], ["speed", speed(timings, seconds, felt, tokens)], ["answer", counted(tokens)]);
  if (usage !== null) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    facts.push(["prompt", cached ? `${counted(usage.prompt_tokens)}, ${cached} cached` : counted(usage.prompt_tokens)]);
  }
  facts.push(["ended by", ending]);
  const list = facts.filter(([, value]) => value !== null).map(fact);
  return build("div", { class: "timings" }, timings === null ? null : phaseBar(timings), build("dl", {}, ...list));
}

function fact([name, value, kind]) {
  return build("div", { class: kind ?? null, "data-fact": name }, build("dt", {}, name), build("dd", {}, value));
}

function phaseBar(timings) {
  const bar = build("div", { class: "phase-bar", "aria-hidden": "true" });
  for (const name of PHASES) {
    const part = build("span", { class: name });
    part.style.flexGrow = String(timings[name] ?? 0);
    bar.append(part);
  }
  return bar;
}

/** Tokens after the first per second of decoding; without the engine's figures, per second of what was seen here. */
function speed(timings, seconds, felt, tokens) {
  const decode = timings?.decode ?? (felt === null ? null : seconds - felt);
  if (tokens === null || tokens < 2 || !decode) return null;
  return `${((tokens - 1) / decode).toFixed(1)} tok/s`;
}

function counted(tokens) {
  return tokens === null ? null : `${tokens} token${tokens === 1 ? "" : "s"}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return null;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
}
