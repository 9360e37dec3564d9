// What the view shows, in a few sentences, for those who see it for the first time.

import { make } from "./dom.js";

const WORDS = [
  ["Step", "The model runs in steps. One step computes many requests at once: for some a piece of their prompt, for others the next token."],
  ["Timeline", "Time goes from left to right, a column per step. Each request has a row; above some twenty there is a strip for each row of the batch instead."],
  ["Prefill and decode", "A prompt is read in chunks (prefill, orange), then the answer comes a token per step (decode, blue). The bars below add up the tokens of each step."],
  ["Prefix cache", "A prompt that begins like an earlier one reuses what was computed for it (green)."],
  ["TTFT and ITL", "Seconds from a request's arrival to its first token, and from each token to the next: p50 is the median, p99 what all but one in a hundred stay below, of the last half minute."],
  ["KV blocks", "What the model remembers of a text lies in blocks of a fixed number of tokens. Each colour is a request, hatched green is free but still reusable."],
  ["Preempted", "Where blocks run out, the youngest request gives its own back and is computed again later (red). Its text stays the same."],
  ["Keys", "On the timeline and the blocks: arrows move and choose, Enter goes there, Escape lets go, + and − zoom."],
];

/** A folded panel; `isLive` adds where the server says more. */
export function makeHelp(isLive) {
  const words = WORDS.map(([name, text]) => make("div", {}, make("dt", { text: name }), make("dd", { text })));
  const more = isLive ? [make("p", {}, "More: ", make("a", { href: "openapi.json", text: "this server’s routes" }), ", and docs/watch-a-request.md in the sources.")] : [];
  return make("details", { class: "engine-help" }, make("summary", { text: "What am I looking at?" }), make("dl", {}, ...words), ...more);
}
