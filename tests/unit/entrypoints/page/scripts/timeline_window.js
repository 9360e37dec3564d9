import { readFileSync } from "node:fs";
import { TimelineWindow } from "./timeline_window.js";
const shown = new TimelineWindow(40);
for (const [name, ...values] of JSON.parse(readFileSync(0, "utf8"))) {
  const result = shown[name](...values);
  if (name === "range") console.log(JSON.stringify([result.from, result.to]));
}
