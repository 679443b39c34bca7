// The `openai` package for JavaScript.

import OpenAI from "openai";
import { answer, assert, check, expect, model, prompt, question, urls } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${urls[0]}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const chat = client.chat.completions;
const ask = { role: "user", content: question };
const first = { model, messages: [ask], max_tokens: 12, temperature: 0 };

await check("models", async () => {
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  assert(names.join() === model, names);
});

await check("chat", async () => {
  const { choices, usage } = await chat.create(first);
  assert(choices[0].message.content.includes(answer), choices[0].message.content);
  assert(usage.completion_tokens > 0, "no usage");
});

await check("chat stream", async () => {
  let text = "";
  let usage;
  for await (const chunk of await chat.create({ ...first, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  assert(text.includes(answer) && usage.completion_tokens > 0, text);
});

await check("second turn", async () => {
  const created = (await chat.create(first)).choices[0].message;
  const parsed = (await chat.parse(first)).choices[0].message;
  const streamed = await chat.stream(first).finalMessage();
  for (const message of [created, parsed, streamed]) {
    const { choices } = await chat.create({ ...first, messages: [ask, message, { role: "user", content: "And of Spain?" }] });
    assert(choices[0].message.content, "no content");
  }
});

await check("completion", async () => {
  const { choices } = await client.completions.create({ model, prompt, max_tokens: 4, temperature: 0 });
  assert(choices[0].text.includes(answer), choices[0].text);
});

await check("completion stream", async () => {
  let text = "";
  for await (const chunk of await client.completions.create({ model, prompt, max_tokens: 4, temperature: 0, stream: true })) {
    text += chunk.choices[0].text;
  }
  assert(text.includes(answer), text);
});

await check("log-probabilities", async () => {
  const { choices } = await chat.create({ ...first, logprobs: true, top_logprobs: 2 });
  assert(choices[0].logprobs.content[0].top_logprobs.length === 2, "no log-probabilities");
});

const place = { type: "object", properties: { place: { type: "string", enum: ["France", "Spain"] } }, required: ["place"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "look_up", parameters: place } }];
const calling = { ...first, max_tokens: 60, tools, tool_choice: "required", parallel_tool_calls: false };

await check("tools", async () => {
  const { choices } = await chat.create(calling);
  const [call] = choices[0].message.tool_calls;
  assert(["France", "Spain"].includes(JSON.parse(call.function.arguments).place), JSON.stringify(choices));
  const found = { role: "tool", tool_call_id: call.id, content: "Paris" };
  const next = await chat.create({ ...first, messages: [ask, choices[0].message, found] });
  assert(next.choices[0].message.content, "no text");
});

await check("tools stream", async () => {
  const { choices } = await chat.stream(calling).finalChatCompletion();
  assert(JSON.parse(choices[0].message.tool_calls[0].function.arguments).place, JSON.stringify(choices));
});

await check("structured output", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "place", strict: true, schema: place } };
  const { choices } = await chat.create({ ...first, max_tokens: 60, response_format });
  assert(["France", "Spain"].includes(JSON.parse(choices[0].message.content).place), choices[0].message.content);
});

await check("errors", async () => {
  await expect(404, () => chat.create({ ...first, model: "other" }), "does not exist");
  await expect(400, () => chat.create({ ...first, temperature: 3 }), "temperature");
});
