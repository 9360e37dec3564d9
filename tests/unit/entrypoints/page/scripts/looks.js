import { readFileSync } from "node:fs";
import { Replay } from "./replay.js";
import { TraceLog } from "./trace_log.js";
const [log, replay] = [new TraceLog(), new Replay()];
for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  log.append([JSON.parse(line)]);
  replay.apply(JSON.parse(line));
  const look = ({ key, phase }) => [log.history.idOf(key), phase, log.history.rows.get(log.history.idOf(key)).look];
  console.log(JSON.stringify([...replay.sequences.values()].map(look)));
}
