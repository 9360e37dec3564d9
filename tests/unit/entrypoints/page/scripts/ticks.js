import { readFileSync } from "node:fs";
import { roundTicks, roundUp } from "./ticks.js";
const [from, to, most] = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify([roundTicks(from, to, most).map(({ text }) => text), roundUp(to)]));
