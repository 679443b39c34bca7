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

await check("errors", async () => {
  await expect(404, () => chat.create({ ...first, model: "other" }), "does not exist");
  await expect(400, () => chat.create({ ...first, temperature: 3 }), "temperature");
  const call = { id: "call_1", type: "function", function: { name: "look_up", arguments: '{"place": "France"}' } };
  const called = { role: "assistant", content: null, tool_calls: [call] };
  const found = { role: "tool", tool_call_id: "call_1", content: "Paris" };
  // The demo model's template knows no tools.
  await expect(400, () => chat.create({ ...first, messages: [ask, called, found] }), "tool calls");
});
