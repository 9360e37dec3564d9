// The page's beginning: the playground, and the engine, live, from the moment it is looked at.

import { build, byId } from "./dom.js";
import { mountEngineView } from "./engine/engine_view.js";
import { liveSource } from "./engine/live.js";
import { askForKey, getKey, wireKeyButton } from "./keys.js";
import { mountPlayground } from "./playground.js";
import { wireTabs } from "./tabs.js";
import { wireThemeButton } from "./theme.js";

wireThemeButton(byId("theme-button"));
wireKeyButton(byId("key-button"));
mountPlayground();
let isWatching = false;
wireTabs(byId("tabs"), (name) => {
  if (name !== "engine" || isWatching) return;
  isWatching = true;
  watch();
});

/** Follow the engine; a refused key is asked for again, until the reader would rather not. */
function watch() {
  const onKeyRefused = async () => {
    if ((await askForKey(getKey())) === null) await offered();
  };
  mountEngineView(byId("engine-view"), liveSource({ getKey, onKeyRefused }));
}

/** Fulfilled once the reader asks for the dialog again. */
function offered() {
  return new Promise((resolve) => {
    const notice = build("p", { class: "notice warn" }, "The engine is shown to those who have a key. ");
    const again = build("button", { class: "button", type: "button" }, "Enter a key");
    again.addEventListener("click", () => {
      notice.remove();
      resolve();
    });
    notice.append(again);
    byId("engine-view").before(notice);
  });
}
