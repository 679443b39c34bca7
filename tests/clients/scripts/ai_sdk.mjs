// The AI SDK (`ai`) with its provider for servers of OpenAI's kind.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";
import { answer, assert, check, collect, expect, model, prompt, question, urls } from "./checks.mjs";

const provider = createOpenAICompatible({ name: "numaserve", baseURL: `${urls[0]}/v1`, apiKey: "none", includeUsage: true });
const options = { model: provider.chatModel(model), maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
const completing = { ...options, model: provider.completionModel(model), maxOutputTokens: 4 };
const messages = [{ role: "user", content: question }];

await check("chat", async () => {
  const { text, usage } = await generateText({ ...options, messages });
  assert(text.includes(answer), text);
  assert(usage.outputTokens > 0, "no usage");
});

await check("chat stream", async () => {
  const text = await collect(streamText({ ...options, prompt: question }));
  assert(text.includes(answer), text);
});

await check("second turn", async () => {
  const streamed = streamText({ ...options, messages });
  await collect(streamed);
  for (const response of [(await generateText({ ...options, messages })).response, await streamed.response]) {
    const turns = [...messages, ...response.messages, { role: "user", content: "And of Spain?" }];
    assert((await generateText({ ...options, messages: turns })).text, "no text");
  }
});

await check("completion", async () => {
  const { text } = await generateText({ ...completing, prompt });
  assert(text, "no text");
});

await check("completion stream", async () => {
  assert(await collect(streamText({ ...completing, prompt })), "no text");
});

const place = { type: "object", properties: { place: { type: "string", enum: ["France", "Spain"] } }, required: ["place"], additionalProperties: false };
const lookUp = tool({ description: "Finds the capital of a country.", inputSchema: jsonSchema(place) });
const calling = { ...options, maxOutputTokens: 60, tools: { look_up: lookUp }, toolChoice: "required", messages };

await check("tools", async () => {
  const { toolCalls } = await generateText(calling); // and more of them: a small model goes on while it may
  assert(["France", "Spain"].includes(toolCalls[0].input.place), JSON.stringify(toolCalls));
});

await check("tools stream", async () => {
  const streamed = streamText(calling);
  await collect(streamed);
  assert(["France", "Spain"].includes((await streamed.toolCalls)[0].input.place), "no call");
});

await check("structured output", async () => {
  const structured = createOpenAICompatible({ name: "numaserve", baseURL: `${urls[0]}/v1`, apiKey: "none", supportsStructuredOutputs: true });
  const { object } = await generateObject({ ...calling, model: structured.chatModel(model), tools: undefined, toolChoice: undefined, schema: jsonSchema(place) });
  assert(["France", "Spain"].includes(object.place), JSON.stringify(object));
});

await check("errors", async () => {
  await expect(404, () => generateText({ ...options, model: provider.chatModel("other"), messages }), "does not exist");
  await expect(400, () => generateText({ ...options, temperature: 3, messages }), "temperature");
});
