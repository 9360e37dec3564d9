// Buttons that copy a text; where the browser allows no clipboard (plain HTTP on another machine) they say so.

import { announce } from "./announcer.js";
import { build } from "./dom.js";

const SHOWN_FOR = 1600;

/** A button that copies what `text()` says at that moment. */
export function copyButton(label, text) {
  const button = build("button", { class: "button plain", type: "button" }, label);
  wireCopyButton(button, text);
  return button;
}

/** The same for a button that is there already. */
export function wireCopyButton(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const done = (await copied(text())) ? "Copied" : "This browser allows no copying here";
    button.textContent = done;
    announce(done);
    setTimeout(() => {
      button.textContent = label;
    }, SHOWN_FOR);
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

/** The older way, which works without a secure context. */
function copiedBySelection(text) {
  const area = build("textarea", { class: "visually-hidden", "aria-hidden": "true", tabindex: -1 });
  const focused = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isDone;
}
