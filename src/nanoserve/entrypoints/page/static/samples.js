// Eight short requests of several kinds, so that there is something to see in the engine.

import { apiFetch, postJson } from "./api.js";

const STORY = "Once upon a time there was a fox who lived at the edge of a dark wood. Every evening he lit an old lamp and sat down to read.";

/** Few connections, since a browser opens few: each request holds several prompts. `after` is in milliseconds. */
const GROUPS = [
  { after: 0, max_tokens: 96, prompt: [`${STORY} One night`, "The old clock in the hall", "A king had three sons."] },
  { after: 250, max_tokens: 48, prompt: [`${STORY} A stranger`, "It rained all day,", `${STORY} The next morning he found a letter. ${STORY} In the letter`] },
  { after: 500, max_tokens: 128, prompt: ["The queen opened the green door and", "Two friends went to the market"] },
];

/** Send them, a few at a time; fulfilled when all are answered. The stories begin alike, so prefix hits can be seen. Throws ApiError. */
export async function sendSamples() {
  const { models } = await (await apiFetch("server_info")).json();
  await Promise.all(GROUPS.map((group) => send(models[0], group)));
}

async function send(model, { after, ...body }) {
  await new Promise((resolve) => setTimeout(resolve, after));
  await (await postJson("v1/completions", { model, ...body })).text();
}
