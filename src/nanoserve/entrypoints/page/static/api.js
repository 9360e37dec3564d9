// Calls to the server: the key goes along, and whatever goes wrong becomes one kind of error that can be shown.

import { askForKey, getKey, keyHeaders } from "./keys.js";

/** What the server, or the way to it, said no with. */
export class ApiError extends Error {
  /**
   * @param {string} message for the reader
   * @param {{status?: number, code?: string | null, param?: string | null, retryAfter?: number | null}} [facts]
   *   param is the request's field at fault; retryAfter is in seconds
   */
  constructor(message, { status = 0, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

/** The address of a route, wherever the page is served. */
export function apiUrl(path) {
  return new URL(path, document.baseURI).href;
}

/**
 * An answer with a good status; asks for a key where the server wants one, as often as it refuses.
 * Throws ApiError, or AbortError where `init.signal` says so.
 */
export async function apiFetch(path, init = {}) {
  for (;;) {
    const sent = getKey();
    const headers = { ...init.headers, ...keyHeaders() };
    let answer;
    try {
      answer = await fetch(apiUrl(path), { ...init, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached. Is it running, and is the network there?", { code: "network" });
    }
    if (answer.ok) return answer;
    const refusal = await readError(answer);
    if (answer.status !== 401 || (await askForKey(sent)) === null) throw refusal;
  }
}

/** POST a JSON body; as apiFetch. */
export function postJson(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return apiFetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** The error of an in-band frame or of an error body: `{"error": {"message", "param", "code"}}`. */
export function errorFrom(body, status = 0, retryAfter = null) {
  const told = body?.error ?? {};
  const message = told.message ?? `The server answered with status ${status}.`;
  return new ApiError(message, { status, code: told.code ?? null, param: told.param ?? null, retryAfter });
}

async function readError(answer) {
  const seconds = Number.parseInt(answer.headers.get("retry-after") ?? "", 10);
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // a proxy's page, or nothing at all: the status has to do
  }
  return errorFrom(body, answer.status, Number.isNaN(seconds) ? null : seconds);
}
