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
  ["owned", "one colour per sequence, striped where they are many; filled as far as its tokens reach"],
  ["shared", "shared: how many tables hold it"],
  ["findable", "green edge: findable by its content"],
  ["cached", "free, content kept for a prefix hit"],
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

export function makeTimelineLegend() {
  const shown = ["stop", "length", "abort", "timeout", "error"];
  const marks = shown.map((reason) => `${END_MARKS[reason]}\u00a0${reason}`).join("  ");
  const ends = make("li", { text: `ended: ${marks}` });
  return make("ul", { class: "engine-legend", "aria-label": "Legend" }, ...makeSigns(TIMELINE_SIGNS), ends);
}

export function makeBlockLegend() {
  return make("ul", { class: "engine-legend", "aria-label": "Legend" }, ...makeSigns(BLOCK_SIGNS));
}

export function makeHistoryLegend() {
  return make("ul", { class: "engine-legend", "aria-label": "Legend" }, ...makeSigns(HISTORY_SIGNS));
}
