import { readFileSync } from "node:fs";
import { Player } from "./player.js";
import { TraceLog } from "./trace_log.js";
globalThis.cancelAnimationFrame = () => {};
const [start, ...records] = readFileSync(0, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const [isLive, isPaused] = ["live", "paused"].map((mode) => process.argv.includes(mode));
const log = new TraceLog(isLive ? 100 : Infinity, 16);
const player = new Player(log, { isLive });
const tell = () => console.log(JSON.stringify([player.position, player.replay.snapshot(), log.end - log.first]));
log.append([start]);
player.follow();
if (isPaused) player.pause();
for (const record of records) {
  log.append([record]);
  player.follow();
  if (isLive) tell();
}
if (isLive) player.pause();
for (let jump = 0; jump < 300; jump += 1) {
  player.seek(log.first + 1 + ((jump * 7919) % (log.end - log.first)));
  tell();
  player.step(jump % 2 ? 1 : -1);
  tell();
}
