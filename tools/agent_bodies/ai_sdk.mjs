// The AI SDK's three providers, whole and streamed, with a tool whose schema has a record: node ai_sdk.mjs URL
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = [process.argv[2], "talker"];
const models = [
  createOpenAICompatible({ name: "nanoserve", baseURL: `${url}/v1`, apiKey: "x", includeUsage: true })(name),
  createOpenAI({ baseURL: `${url}/v1`, apiKey: "x" })(name),
  createOpenAI({ baseURL: `${url}/v1`, apiKey: "x" }).chat(name),
  createAnthropic({ baseURL: `${url}/v1`, apiKey: "x" })(name),
];
const tools = {
  weather: tool({
    description: "Say whether it will rain.",
    inputSchema: z.object({
      city: z.string(),
      days: z.number().int().min(1).optional(),
      labels: z.record(z.string(), z.string()).optional(),
      units: z.union([z.literal("metric"), z.literal("imperial")]).nullish(),
    }),
    execute: async ({ city }) => `it stays dry in ${city}`,
  }),
};
const asked = { tools, system: "Be short.", prompt: "Will it rain in Rome?", stopWhen: stepCountIs(3), maxRetries: 0 };
for (const model of models) {
  try {
    console.log((await generateText({ model, ...asked })).text);
    const streamed = streamText({ model, ...asked, onError: ({ error }) => console.log("FAILED", String(error)) });
    for await (const piece of streamed.textStream) process.stdout.write(piece);
    console.log();
  } catch (error) {
    console.log("FAILED", String(error).slice(0, 300));
  }
  try {
    const schema = z.object({ rainy: z.boolean(), days: z.array(z.string()) });
    console.log((await generateObject({ model, schema, prompt: "Will it rain in Rome?", maxRetries: 0, maxOutputTokens: 100 })).object);
  } catch (error) {
    console.log("FAILED", String(error).slice(0, 300));
  }
}
