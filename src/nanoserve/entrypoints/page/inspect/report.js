// The script of a report: shows the trace that the document holds.

import { mountEngineView } from "/ui/engine/engine_view.js";
import { replaySource } from "/ui/engine/recording.js";
import { wireThemeButton } from "/ui/theme.js";

wireThemeButton(document.getElementById("theme-button"));
const trace = document.getElementById("trace").textContent;
mountEngineView(document.getElementById("engine-view"), replaySource(trace));
