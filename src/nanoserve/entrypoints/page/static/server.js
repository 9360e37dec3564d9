// What the page has to know of the server before it can ask: models, defaults, and whether it is ready at all.

import { ApiError, apiFetch } from "./api.js";
import { build, byId } from "./dom.js";

const PATIENCE = 5;

/**
 * `/server_info`, waited for while the server loads its model; says meanwhile what is being waited for.
 * @returns {Promise<object>}
 */
export async function loadServer() {
  const notice = byId("server-notice");
  for (;;) {
    try {
      const found = await (await apiFetch("server_info")).json();
      notice.hidden = true;
      byId("served").textContent = described(found);
      return found;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      await waitAfter(error, notice);
    }
  }
}

async function waitAfter(error, notice) {
  notice.hidden = false;
  if (error.status === 503) {
    notice.replaceChildren(error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter ?? PATIENCE)));
    return;
  }
  const label = error.status === 401 ? "Enter a key" : "Try again";
  const again = build("button", { class: "button", type: "button" }, label);
  notice.replaceChildren(error.message, " ", again);
  await new Promise((resolve) => again.addEventListener("click", resolve, { once: true }));
}

function described({ models, engine, version }) {
  const context = engine.max_model_len.toLocaleString("en");
  return `${models[0]} · ${engine.dtype} on ${engine.device} · context ${context} · ${version}`;
}
