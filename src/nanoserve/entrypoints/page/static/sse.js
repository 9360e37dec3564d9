// Server-sent events out of a fetch: EventSource could neither POST nor send a key.

/**
 * The events of a response's body, as they come; comments are left out.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{event: string, data: string}>}
 */
export async function* sseEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const found = readBlock(block);
        if (found !== null) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // hangs up where the reader stopped early
  }
}

function readBlock(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
  }
  return data.length === 0 ? null : { event, data: data.join("\n") };
}
