// The AI SDK (`ai`) with OpenAI's own provider, whose models ask for responses.

import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from "ai";
import { answer, assert, check, collect, expect, model, question, urls } from "./checks.mjs";

const provider = createOpenAI({ baseURL: `${urls[0]}/v1`, apiKey: "none" });
const options = { model: provider(model), maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
const messages = [{ role: "user", content: question }];

await check("chat", async () => {
  const { text, usage, response } = await generateText({ ...options, system: "Be brief.", messages });
  assert(text.includes(answer), text);
  assert(usage.outputTokens > 0, "no usage");
  assert(response.id.startsWith("resp_"), `${response.id} is not a response's`);
});

await check("chat stream", async () => {
  const streamed = streamText({ ...options, prompt: question });
  const text = await collect(streamed);
  assert(text.includes(answer), text);
  assert((await streamed.usage).outputTokens > 0, "no usage");
});

// By their items, by references to them (`store` unset: the provider takes them for stored), and by the response's id.
await check("second turn", async () => {
  const more = { role: "user", content: "And of Spain?" };
  for (const store of [false, undefined]) {
    const providerOptions = { openai: { store } };
    const streamed = streamText({ ...options, messages, providerOptions });
    await collect(streamed);
    const whole = await generateText({ ...options, messages, providerOptions });
    for (const response of [whole.response, await streamed.response]) {
      const turns = [...messages, ...response.messages, more];
      assert((await generateText({ ...options, messages: turns, providerOptions })).text, "no text");
    }
  }
  const { providerMetadata } = await generateText({ ...options, messages });
  const previousResponseId = providerMetadata.openai.responseId;
  const { text } = await generateText({ ...options, messages: [more], providerOptions: { openai: { previousResponseId } } });
  assert(text, "no text");
});

await check("log-probabilities", async () => {
  const { text, providerMetadata } = await generateText({ ...options, messages, providerOptions: { openai: { logprobs: 2 } } });
  const entries = providerMetadata.openai.logprobs.flat();
  assert(entries.map((entry) => entry.token).join("") === text, JSON.stringify(entries));
  assert(entries.every((entry) => entry.top_logprobs.length === 2), JSON.stringify(entries));
});

const place = { type: "object", properties: { place: { type: "string", enum: ["France", "Spain"] } }, required: ["place"], additionalProperties: false };
const description = "Finds the capital of a country.";
const lookUp = tool({ description, inputSchema: jsonSchema(place) });
const calling = { ...options, maxOutputTokens: 60, tools: { look_up: lookUp }, toolChoice: "required", messages };

await check("tools", async () => {
  const { toolCalls, finishReason } = await generateText({ ...calling, providerOptions: { openai: { parallelToolCalls: false } } });
  assert(["France", "Spain"].includes(toolCalls[0].input.place), JSON.stringify(toolCalls));
  assert(finishReason === "tool-calls", finishReason);
  // A round: the call is made, and its result answered.
  const asked = [];
  const run = tool({ description, inputSchema: jsonSchema(place), execute: async (input) => asked.push(input) && answer });
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
  for (const store of [false, undefined]) {
    asked.length = 0;
    const providerOptions = { openai: { store, parallelToolCalls: false } };
    const round = await generateText({ ...calling, tools: { look_up: run }, prepareStep, stopWhen: stepCountIs(2), providerOptions });
    assert(asked.length === 1 && round.steps.length === 2, JSON.stringify(asked));
    assert(round.text, "no text behind the result");
  }
});

await check("tools stream", async () => {
  const streamed = streamText(calling);
  await collect(streamed);
  assert(["France", "Spain"].includes((await streamed.toolCalls)[0].input.place), "no call");
});

await check("structured output", async () => {
  const asked = { ...options, maxOutputTokens: 60, messages, schema: jsonSchema(place) };
  const { object } = await generateObject(asked);
  assert(["France", "Spain"].includes(object.place), JSON.stringify(object));
  const streamed = streamObject(asked);
  for await (const _ of streamed.partialObjectStream); // it is read as it is asked for
  const { place: last } = await streamed.object;
  assert(["France", "Spain"].includes(last), last);
});

await check("errors", async () => {
  await expect(404, () => generateText({ ...options, model: provider("other"), messages }), "does not exist");
  await expect(400, () => generateText({ ...options, temperature: 3, messages }), "temperature");
});
