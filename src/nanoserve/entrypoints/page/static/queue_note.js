// Where in the engine's queue a request of the page is, as long as it waits there.

import { announce } from "./announcer.js";

/**
 * Show beside an answer how many requests wait before it, and say it aloud once.
 * @param {import("./engine/own_requests.js").OwnRequests} requests
 * @param {import("./answer.js").AnswerView} view of a request that is sent now
 * @returns {() => void} ends it
 */
export function followQueue(requests, view) {
  const { mark } = requests;
  let isTold = false;
  return requests.listen(() => {
    const ahead = requests.countAhead(mark);
    const text = ahead === null ? "" : ahead === 0 ? "queued, next" : `queued, ${ahead} ahead`;
    view.showQueue(text);
    if (text && !isTold) announce(text);
    isTold ||= text !== "";
  });
}
