// The `openai` package for JavaScript.

import OpenAI from "openai";
import { answer, assert, check, expect, model, prompt, question, urls } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${urls[0]}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const chat = client.chat.completions;
const { responses } = client;
const ask = { role: "user", content: question };
const more = { role: "user", content: "And of Spain?" };
const first = { model, messages: [ask], max_tokens: 12, temperature: 0 };
const toRespond = { model, input: [ask], max_output_tokens: 12, temperature: 0 };

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
    const { choices } = await chat.create({ ...first, messages: [ask, message, more] });
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

await check("chat", async () => {
  const response = await responses.create(toRespond);
  assert(response.output_text.includes(answer), response.output_text);
  assert((await responses.retrieve(response.id)).output[0].id === response.output[0].id, "it was not stored");
  const { data } = await responses.inputItems.list(response.id);
  assert(data.length === 1 && data[0].content[0].text === question, JSON.stringify(data));
  await responses.delete(response.id);
});

await check("chat stream", async () => {
  let text = "";
  const stream = responses.stream(toRespond).on("response.output_text.delta", ({ delta }) => (text += delta));
  const { output, status } = await stream.finalResponse(); // streamed, it has no `output_text`
  assert(text.includes(answer) && text === output[0].content[0].text, text);
  assert(["completed", "incomplete"].includes(status), status);
});

await check("second turn", async () => {
  const created = await responses.create(toRespond);
  const parsed = await responses.parse(toRespond);
  const streamed = await responses.stream(toRespond).finalResponse();
  for (const { id, output } of [created, parsed, streamed]) {
    const references = output.map((item) => ({ type: "item_reference", id: item.id }));
    const ways = [{ input: [ask, ...output, more] }, { input: [ask, ...references, more] }, { input: [more], previous_response_id: id }];
    const texts = [];
    for (const way of ways) texts.push((await responses.create({ ...toRespond, ...way })).output_text);
    assert(texts[0] && texts.every((text) => text === texts[0]), JSON.stringify(texts));
  }
});

await check("log-probabilities", async () => {
  const { output, output_text } = await responses.create({ ...toRespond, top_logprobs: 2, include: ["message.output_text.logprobs"] });
  const entries = output[0].content[0].logprobs;
  assert(entries.map(({ token }) => token).join("") === output_text, JSON.stringify(entries));
  assert(entries.every(({ top_logprobs }) => top_logprobs.length === 2), JSON.stringify(entries));
});

const toCall = { ...toRespond, max_output_tokens: 60, tools: [{ type: "function", name: "look_up", parameters: place, strict: true }] };
const must = { tool_choice: "required", parallel_tool_calls: false };

await check("tools", async () => {
  const { id, output } = await responses.parse({ ...toCall, ...must });
  const call = output.at(-1);
  assert(["France", "Spain"].includes(JSON.parse(call.arguments).place), JSON.stringify(output));
  const found = { type: "function_call_output", call_id: call.call_id, output: answer };
  const ways = [{ input: [ask, ...output, found] }, { input: [found], previous_response_id: id }];
  for (const way of ways) assert((await responses.create({ ...toRespond, ...way })).output_text, "no text");
});

await check("tools stream", async () => {
  const { output } = await responses.stream({ ...toCall, ...must }).finalResponse();
  assert(JSON.parse(output.at(-1).arguments).place, JSON.stringify(output));
});

await check("structured output", async () => {
  const text = { format: { type: "json_schema", name: "place", strict: true, schema: place } };
  const { output_parsed } = await responses.parse({ ...toRespond, max_output_tokens: 60, text });
  assert(["France", "Spain"].includes(output_parsed.place), JSON.stringify(output_parsed));
});

await check("errors", async () => {
  await expect(404, () => responses.create({ ...toRespond, model: "other" }), "does not exist");
  await expect(404, () => chat.create({ ...first, model: "other" }), "does not exist");
  await expect(400, () => chat.create({ ...first, temperature: 3 }), "temperature");
});
