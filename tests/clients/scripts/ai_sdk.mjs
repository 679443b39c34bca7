// The AI SDK (`ai`) with its provider for servers of OpenAI's kind.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { answer, assert, check, expect, model, prompt, question, urls } from "./checks.mjs";

const provider = createOpenAICompatible({ name: "numaserve", baseURL: `${urls[0]}/v1`, apiKey: "none", includeUsage: true });
const options = { model: provider.chatModel(model), maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
const completing = { ...options, model: provider.completionModel(model), maxOutputTokens: 4 };
const messages = [{ role: "user", content: question }];

async function collect(result) {
  let text = "";
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  return text;
}

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

await check("errors", async () => {
  await expect(404, () => generateText({ ...options, model: provider.chatModel("other"), messages }), "does not exist");
  await expect(400, () => generateText({ ...options, temperature: 3, messages }), "temperature");
  const call = { toolCallId: "call_1", toolName: "look_up" };
  const called = { role: "assistant", content: [{ type: "tool-call", ...call, input: { place: "France" } }] };
  const output = { type: "text", value: "Paris" };
  const found = { role: "tool", content: [{ type: "tool-result", ...call, output }] };
  // The demo model's template knows no tools.
  await expect(400, () => generateText({ ...options, messages: [...messages, called, found] }), "tool calls");
});
