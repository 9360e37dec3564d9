// What the colours and marks mean.

import { make } from "./dom.js";
import { END_MARKS } from "./timeline_paint.js";

const TIMELINE_SIGNS = [
  ["queued", "queued"],
  ["hit", "found in the prefix cache"],
  ["prefill", "prefill chunk (its tokens)"],
  ["decode", "decode (one token each)"],
  ["preempted", "preempted"],
];
const BLOCK_SIGNS = [
  ["owned", "a colour per sequence, filled as far as its tokens reach"],
  ["shared", "shared: how many hold it"],
  ["findable", "in the prefix cache"],
  ["cached", "free, kept for a prefix hit"],
  ["free", "free"],
];

const HISTORY_SIGNS = [
  ["owned", "held by one sequence, in its colour"],
  ["black", "held by several"],
  ["cached", "free, content kept for a prefix hit"],
  ["free", "free"],
];

function makeSigns(signs) {
  return signs.map(([kind, text]) => {
    const swatch = make("span", { class: `engine-sign engine-sign-${kind}`, "aria-hidden": "true" });
    return make("li", {}, swatch, text);
  });
}

/** A list of signs; folded up on a narrow screen, where the pictures come first. */
function makeLegend(...items) {
  const list = make("ul", { class: "engine-legend", "aria-label": "Legend" }, ...items);
  if (!matchMedia("(max-width: 40rem)").matches) return list;
  return make("details", { class: "engine-key" }, make("summary", { text: "What the signs mean" }), list);
}

export function makeTimelineLegend() {
  const shown = ["stop", "length", "abort", "timeout", "error"];
  const marks = shown.map((reason) => `${END_MARKS[reason]}\u00a0${reason}`).join("  ");
  return makeLegend(...makeSigns(TIMELINE_SIGNS), make("li", { text: `ended: ${marks}` }));
}

export function makeBlockLegend() {
  return makeLegend(...makeSigns(BLOCK_SIGNS));
}

export function makeHistoryLegend() {
  return makeLegend(...makeSigns(HISTORY_SIGNS));
}
