import { readFileSync } from "node:fs";
import { TraceLog } from "./trace_log.js";
const records = readFileSync(0, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const log = new TraceLog();
log.append(records);
const { columns, rows } = log.history;
const steps = columns.filter(({ gap }) => !gap);
const tokens = (column) => column.prefillTokens + column.decodeTokens;
const drawn = steps.map((column) => [...rows.values()].reduce((sum, row) => sum + row.spans.reduce((all, span) => {
  const isThere = span.from <= column.number && (span.to === null || span.to > column.number);
  if (!isThere || !["chunk", "decode"].includes(span.kind)) return all;
  return all + (span.length ?? 1);
}, 0), 0));
const steady = columns.map(({ number }, index) => number === index);
console.log(JSON.stringify([steps.map(tokens), drawn, steady.every(Boolean), [...rows.values()].map((row) => row.reason)]));
