import { createInterface } from "node:readline";
import { Replay } from "./replay.js";
const replay = new Replay();
const restored = new Replay();
for await (const line of createInterface({ input: process.stdin })) {
  const record = JSON.parse(line);
  replay.apply(record);
  restored.apply(record);
  restored.restore(JSON.parse(JSON.stringify(restored.checkpoint())));
  console.log(JSON.stringify([replay.snapshot(), restored.snapshot(), replay.countPhases(), restored.countPhases()]));
}
