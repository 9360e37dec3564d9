// The engine's step log as it happens: GET /live, read with fetch since the key goes in a header.

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15_000;
const SILENCE = 20_000;

/**
 * A source of the view that connects when it is subscribed to, and again, ever more slowly, when the server is away.
 * @param {{getKey: () => ?string, onKeyRefused: () => (void|Promise<void>), url?: string}} options a refused key stops
 *   it until what `onKeyRefused` returned is fulfilled, or until `retry` is called.
 */
export function liveSource({ getKey = () => null, onKeyRefused = () => {}, url = "live" }) {
  const source = { header: null, retry: () => {} };
  source.subscribe = (onRecords, onStatus, onHeader, onConnection = () => {}) => {
    const listeners = {
      trace: onRecords,
      status: onStatus,
      header: (header) => onHeader((source.header = header)),
    };
    const feed = new LiveFeed({ url, getKey, onKeyRefused, onConnection, listeners });
    source.retry = () => feed.retry();
    feed.run();
    return () => feed.stop();
  };
  return source;
}

class LiveFeed {
  #stopped = false;
  #wake = () => {};
  #abort = null;
  #retryAfter = 0;

  constructor(options) {
    Object.assign(this, options);
  }

  async run() {
    let wait = FIRST_WAIT;
    while (!this.#stopped) {
      this.onConnection("connecting");
      const outcome = await this.#read().catch(() => "away");
      if (this.#stopped) return;
      this.onConnection(outcome === "ended" ? "away" : outcome);
      if (outcome === "refused") {
        await Promise.race([this.onKeyRefused() ?? new Promise(() => {}), this.#sleep(null)]);
        continue;
      }
      wait = outcome === "ended" ? FIRST_WAIT : Math.min(wait * 2, LONGEST_WAIT);
      await this.#rest(Math.max(wait, this.#retryAfter) * (0.75 + Math.random() / 2));
    }
  }

  /** Try again now, for instance with another key. */
  retry() {
    this.#wake();
  }

  stop() {
    this.#stopped = true;
    this.#abort?.abort();
    this.#wake();
  }

  /** One connection: `refused`, `full`, `away`, or `ended` after it had brought something; rejects when it breaks. */
  async #read() {
    this.#retryAfter = 0;
    const key = this.getKey();
    const headers = { Accept: "text/event-stream", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    this.#abort = new AbortController();
    const response = await fetch(this.url, { headers, signal: this.#abort.signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) return "refused";
    this.#retryAfter = 1000 * (Number.parseInt(response.headers.get("retry-after") ?? "", 10) || 0);
    if (response.status === 429 || response.status === 503) return "full";
    if (!response.ok || !response.body) return "away";
    this.onConnection("live");
    const watchdog = new Watchdog(() => this.#abort.abort());
    let outcome = "away";
    try {
      for await (const { event, data } of serverSentEvents(response.body, () => watchdog.pat())) {
        outcome = "ended";
        this.#tell(event, data);
      }
    } finally {
      watchdog.stop();
      this.#abort.abort();
    }
    return outcome;
  }

  /** A fault of a listener is reported, and does not end the connection. */
  #tell(event, data) {
    try {
      this.listeners[event]?.(JSON.parse(data));
    } catch (error) {
      reportError(error);
    }
  }

  /** Wait for the server; no longer than until the network is back, or somebody looks. */
  async #rest(milliseconds) {
    const listening = new AbortController();
    const { signal } = listening;
    window.addEventListener("online", () => this.retry(), { signal });
    document.addEventListener("visibilitychange", () => document.hidden || this.retry(), { signal });
    await this.#sleep(milliseconds);
    listening.abort();
  }

  #sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? null : setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Calls back when nothing came for a while: a connection can die without a word. */
class Watchdog {
  constructor(onSilence) {
    this.onSilence = onSilence;
    this.pat();
  }

  pat() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.onSilence, SILENCE);
  }

  stop() {
    clearTimeout(this.timer);
  }
}

/** The events of a stream of bytes; comments and fields other than `event` and `data` are passed over. */
async function* serverSentEvents(body, onBytes = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    rest += value;
    const blocks = rest.split(/\r\n\r\n|\n\n|\r\r/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event.data) yield event;
    }
  }
}

function parseEvent(block) {
  const event = { event: "message", data: "" };
  const data = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const [, field, value] = line.match(/^([^:]*):? ?(.*)$/s);
    if (field === "event") event.event = value;
    else if (field === "data") data.push(value);
  }
  event.data = data.join("\n");
  return event;
}
