import { readFileSync } from "node:fs";
import { TraceLog } from "./trace_log.js";
const log = new TraceLog();
log.append(readFileSync(0, "utf8").trim().split("\n").map((line) => JSON.parse(line)));
const { history, words } = log;
const rows = [...history.rows.values()].map(({ id, requestId, reason }) => [requestId, reason, words.read(id, 0, 4)]);
console.log(JSON.stringify([rows, history.columns.map(({ gap }) => gap).filter(Boolean)]));
