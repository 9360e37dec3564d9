// A step, and a sequence's life, in words.

import { formatCount, formatNumber, formatSeconds, listNames, sequenceName } from "./dom.js";

/** What a step did, one line each. `nameOf` gives the name of a key at that step. */
export function describeStep(column, budget, nameOf, position) {
  if (column.gap === "restart") return ["The engine restarted here."];
  if (column.gap) return ["A part of the log was left out here."];
  const total = column.prefillTokens + column.decodeTokens;
  const isHome = column.endedBy < position;
  const took = isHome && column.startedAt !== null ? `, took ${formatSeconds(column.endedAt - column.startedAt)}` : "";
  const mix = `${formatNumber(column.prefillTokens)} prefill + ${formatNumber(column.decodeTokens)} decode`;
  const lines = [
    `Step ${column.step}, at ${formatSeconds(column.at)}${took}${isHome ? "" : ", in flight"}`,
    `${formatNumber(total)} of at most ${formatCount(budget, "token")}: ${mix}`,
    `${column.running} running, ${column.waiting} waiting${isHome ? `, ${formatCount(column.numGenerated, "token")} generated` : ""}`,
  ];
  const chunks = column.chunks.map(([key, start, length]) => `${nameOf(key)} [${start}, ${start + length})`);
  if (chunks.length) lines.push(`Prefill: ${listNames(chunks, 5)}`);
  if (column.decoding.length) lines.push(`Decode: ${listNames(column.decoding.map(nameOf), 5)}`);
  return lines.concat(describeMoves(column, nameOf));
}

function describeMoves({ admitted, preempted }, nameOf) {
  const lines = [];
  for (const { key, cached, resumed } of admitted.slice(0, 6)) {
    const hit = cached ? `, ${formatCount(cached, "token")} found in the prefix cache` : "";
    lines.push(`${resumed ? "Resumed" : "Admitted"}: ${nameOf(key)}${hit}`);
  }
  if (admitted.length > 6) lines.push(`and ${admitted.length - 6} more admitted`);
  if (preempted.length) lines.push(`Preempted: ${listNames(preempted.map(nameOf), 5)}`);
  return lines;
}

/** What became of a sequence so far. */
export function describeRow(row, position) {
  const hasEnded = row.endedSerial < position;
  const arrived = row.arrivedAt === null ? "was there before the log" : `arrived at ${formatSeconds(row.arrivedAt)}`;
  const chunks = row.spans.filter(({ kind }) => kind === "chunk").length;
  const preemptions = row.spans.filter(({ kind }) => kind === "preempted").length;
  const lines = [`${sequenceName(row)}: ${formatCount(row.numPrompt, "prompt token")}, ${arrived}`];
  if (row.arrivedAt !== null && row.firstAt > row.arrivedAt) { // equal where one record tells of both
    lines.push(`First token after ${formatSeconds(row.firstAt - row.arrivedAt)}, ${formatCount(chunks, "prefill chunk")}`);
  }
  if (preemptions) lines.push(`Preempted ${preemptions === 1 ? "once" : `${preemptions} times`}`);
  if (hasEnded) {
    const count = row.numGenerated === null ? "" : ` with ${formatCount(row.numGenerated, "token")}`;
    lines.push(`Ended at ${formatSeconds(row.endedAt)}: ${row.reason}${count}`);
  }
  return lines;
}

/** What a sequence does in a step, in one word or two. */
export function describePart(column, sequence) {
  const chunk = column?.chunks?.find(([key]) => key === sequence.key);
  if (chunk) return `prefill [${chunk[1]}, ${chunk[1] + chunk[2]})`;
  if (column?.decoding?.includes(sequence.key)) return "decode";
  return sequence.phase === "running" ? "nothing" : sequence.phase;
}
