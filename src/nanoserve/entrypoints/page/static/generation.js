// One request on its way: posted, read as it comes, and told in the same words whichever route it went to.

import { ApiError, errorFrom, postJson } from "./api.js";
import { sseEvents } from "./sse.js";

/**
 * @typedef {{text: string, logprob: number | null, top: {text: string, logprob: number}[]}} ScoredText
 * @typedef {{index: number, id: string, name: string, arguments: string}} CallDelta id and name are in the first one of a call
 * @typedef {object} Addition what a chunk adds to one answer
 * @property {number} index
 * @property {string} thought what the model thinks
 * @property {string | null} text null where it says nothing, which is not the same as an empty text
 * @property {CallDelta[]} calls
 * @property {ScoredText[]} tokens where they were asked for
 * @property {string | null} finish
 * @property {string | number | null} stopReason
 * @property {{queue: number | null, prefill: number | null, decode: number | null} | null} timings in seconds
 */

const ENGINE_HEADER = "x-engine-request";

/**
 * @param {import("./requests.js").ApiRequest} request
 * @param {AbortSignal} signal hangs up, and the server stops computing
 * @param {(engineId: string | null) => void} onBegin called with the request's name in the engine when the answer begins
 * @returns {AsyncGenerator<{additions: Addition[], prompt: ScoredText[] | null, usage: object | null}>}
 *   Throws ApiError, before the first chunk or after it, and AbortError.
 */
export async function* generate(request, signal, onBegin = () => {}) {
  const answer = await postJson(request.path, request.body, signal);
  onBegin(answer.headers.get(ENGINE_HEADER));
  let isWhole = false; // and then read on to the end: hanging up would look like leaving
  try {
    for await (const { data } of sseEvents(answer.body)) {
      if (data === "[DONE]") isWhole = true;
      else yield readChunk(JSON.parse(data));
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The connection was lost in the middle of the answer.", { code: "network" });
  }
  if (!isWhole) throw new ApiError("The stream ended before the answer did.", { code: "network" });
}

function readChunk(chunk) {
  if (chunk.error) throw errorFrom(chunk);
  return { additions: chunk.choices.map(readChoice), prompt: readPrompt(chunk), usage: chunk.usage ?? null };
}

/** The scored tokens of the prompt, which the first chunk brings where they were asked for. */
function readPrompt(chunk) {
  const { prompt_logprobs: scores, prompt_token_ids: ids } = chunk.prompt_logprobs ? chunk : chunk.choices[0] ?? {};
  return scores && ids ? scores.map((position, place) => readPromptToken(position, ids[place])) : null;
}

function readChoice(choice) {
  return {
    index: choice.index,
    thought: choice.delta?.reasoning ?? "",
    text: choice.delta ? choice.delta.content ?? null : choice.text,
    calls: (choice.delta?.tool_calls ?? []).map(({ index, id, function: called }) => ({ index, id, name: called.name, arguments: called.arguments ?? "" })),
    tokens: choice.delta ? readChatTokens(choice.logprobs) : readLegacyTokens(choice.logprobs),
    finish: choice.finish_reason ?? null,
    stopReason: choice.stop_reason ?? null,
    timings: choice.timings ?? null,
  };
}

function readChatTokens(logprobs) {
  return (logprobs?.content ?? []).map(({ token, logprob, top_logprobs: top }) => ({
    text: token, logprob, top: top.map((each) => ({ text: each.token, logprob: each.logprob })),
  }));
}

function readLegacyTokens(logprobs) {
  if (!logprobs) return [];
  return logprobs.tokens.map((text, place) => ({
    text,
    logprob: logprobs.token_logprobs[place],
    top: Object.entries(logprobs.top_logprobs[place] ?? {}).map(([each, logprob]) => ({ text: each, logprob })),
  }));
}

/** By token id; nothing is told of the first token, since nothing precedes it. */
function readPromptToken(position, id) {
  if (position === null) return { text: "", logprob: null, top: [] };
  const { decoded_token: text, logprob } = position[id];
  return { text, logprob, top: Object.values(position).map((each) => ({ text: each.decoded_token, logprob: each.logprob })) };
}
