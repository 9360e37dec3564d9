// The script of a report: shows the trace that the document holds; behind `#print` as one picture of the whole run.

import { mountEngineView } from "/ui/engine/engine_view.js";
import { replaySource } from "/ui/engine/recording.js";
import { wireThemeButton } from "/ui/theme.js";

const root = document.documentElement;
const whole = location.hash === "#print";
if (whole) Object.assign(root.dataset, { print: "", theme: "light" });
wireThemeButton(document.getElementById("theme-button"));
const trace = document.getElementById("trace").textContent;
mountEngineView(document.getElementById("engine-view"), replaySource(trace), { whole });
