// The API key: asked for when the server wants one, kept for this tab only, forgotten on request.

import { byId } from "./dom.js";

const STORED_KEY = "nanoserve.key";
/** The event that the window gets when a key was entered. */
export const KEY_GIVEN = "nanoserve-key-given";
let asking = null;
let keyButton = null;

/** The key, or null where none is known. */
export function getKey() {
  return sessionStorage.getItem(STORED_KEY);
}

/** The headers that say who asks. */
export function keyHeaders() {
  const key = getKey();
  return key === null ? {} : { authorization: `Bearer ${key}` };
}

/** Show the button that forgets the key whenever there is one. */
export function wireKeyButton(button) {
  keyButton = button;
  button.addEventListener("click", () => {
    sessionStorage.removeItem(STORED_KEY);
    location.reload();
  });
  showKeyButton();
}

/**
 * Ask for a key; whoever asks meanwhile waits for the same answer.
 * @param {string | null} refused the key that the server did not take, null where none was sent
 * @returns {Promise<string | null>} the new key; null where the reader would rather not
 */
export function askForKey(refused) {
  const known = getKey();
  if (known !== null && known !== refused) return Promise.resolve(known); // another request has asked already
  if (refused !== null) sessionStorage.removeItem(STORED_KEY);
  asking ??= openDialog(refused !== null).finally(() => {
    asking = null;
    showKeyButton();
  });
  return asking;
}

function openDialog(wasRefused) {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  const problem = byId("key-problem");
  input.value = "";
  problem.textContent = wasRefused ? "The server does not know that key. Try another one." : "";
  input.setAttribute("aria-invalid", String(wasRefused));
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const form = byId("key-form");
    const listening = new AbortController();
    const { signal } = listening;
    const end = (key) => {
      listening.abort();
      input.value = "";
      if (key !== null) sessionStorage.setItem(STORED_KEY, key);
      dialog.close();
      resolve(key);
      if (key !== null) window.dispatchEvent(new Event(KEY_GIVEN));
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (/^[\x21-\x7e]+$/.test(key)) end(key);
      else refuse(key === "" ? "Type a key first." : "A key has no spaces and only plain characters.");
    }, { signal });
    byId("key-cancel").addEventListener("click", () => end(null), { signal });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(null);
    }, { signal });
    function refuse(message) {
      problem.textContent = message;
      input.setAttribute("aria-invalid", "true");
      input.focus();
    }
  });
}

function showKeyButton() {
  if (keyButton !== null) keyButton.hidden = getKey() === null;
}
