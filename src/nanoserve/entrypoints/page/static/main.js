// The page's beginning: the playground, and the engine, which is followed from here on, whichever of the two is shown.

import { build, byId } from "./dom.js";
import { mountEngineView } from "./engine/engine_view.js";
import { liveSource } from "./engine/live.js";
import { askForKey, getKey, KEY_GIVEN, wireKeyButton } from "./keys.js";
import { mountPlayground } from "./playground.js";
import { sendSamples } from "./samples.js";
import { wireTabs } from "./tabs.js";
import { wireThemeButton } from "./theme.js";

wireThemeButton(byId("theme-button"));
wireKeyButton(byId("key-button"));
const showView = wireTabs(byId("tabs"));
const source = liveSource({ getKey, onKeyRefused });
const { requests } = mountEngineView(byId("engine-view"), source, { sendSamples });
mountPlayground({ requests, showRow });

/** Go to a sequence's row in the engine; false where it is not there any more. */
function showRow(engineId, index) {
  if (!requests.has(engineId, index)) return false;
  showView("engine");
  requests.show(engineId, index);
  return true;
}

/** A refused key is asked for again, until the reader would rather not. */
async function onKeyRefused() {
  if ((await askForKey(getKey())) === null) await offered();
}

/** Fulfilled once the reader asks for the dialog again, or another part of the page has got a key. */
function offered() {
  return new Promise((resolve) => {
    const notice = build("p", { class: "notice warn" }, "The engine is shown to those who have a key. ");
    const again = build("button", { class: "button", type: "button" }, "Enter a key");
    const end = () => {
      notice.remove();
      resolve();
    };
    again.addEventListener("click", end);
    window.addEventListener(KEY_GIVEN, end, { once: true });
    notice.append(again);
    byId("engine-view").before(notice);
  });
}
