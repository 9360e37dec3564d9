// The request as it is sent: one value that the fetch, the curl and the Python are all made from.

/**
 * @typedef {object} ApiRequest
 * @property {"chat" | "completion"} mode
 * @property {string} path of the route, without a leading slash
 * @property {Record<string, unknown>} body
 */

/**
 * @param {object} wishes
 * @param {"chat" | "completion"} wishes.mode
 * @param {string} wishes.model
 * @param {{role: string, content: string}[]} wishes.messages for chat
 * @param {string} wishes.prompt for a completion
 * @param {Record<string, unknown>} wishes.shape tools, which of them are called, and the format of the answer
 * @param {Record<string, unknown>} wishes.values sampling parameters that were set
 * @param {number | null} wishes.alternatives likeliest tokens to report at each position; null for no log-probabilities
 * @param {boolean} wishes.scoresPrompt whether the prompt's tokens are to be scored as well
 * @returns {ApiRequest}
 */
export function makeRequest({ mode, model, messages, prompt, shape, values, alternatives, scoresPrompt }) {
  const isChat = mode === "chat";
  const body = { model, ...(isChat ? { messages } : { prompt }), ...shape, ...values };
  if (alternatives !== null) {
    Object.assign(body, isChat ? { logprobs: true, top_logprobs: alternatives } : { logprobs: alternatives });
    if (scoresPrompt) Object.assign(body, { prompt_logprobs: alternatives, return_token_ids: true });
  }
  Object.assign(body, { stream: true, stream_options: { include_usage: true }, return_timings: true });
  return { mode, path: isChat ? "v1/chat/completions" : "v1/completions", body };
}
