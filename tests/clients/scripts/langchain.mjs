// LangChain for JavaScript: `ChatOpenAI` of @langchain/openai, over chat and over responses.

import { ContextOverflowError } from "@langchain/core/errors";
import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { assert, check, expect, model, urls } from "./checks.mjs";

const said = "ok";
const greeting = [new SystemMessage("Be brief."), new HumanMessage("Hello")];
const followUp = new HumanMessage("And now?");
const schema = { type: "object", properties: { place: { type: "string" } }, required: ["place"], additionalProperties: false };
const lookUp = tool(({ place }) => `found ${place}`, { name: "look_up", description: "Finds a capital.", schema });

const chat = (useResponsesApi, url = urls[0], more = {}) =>
  new ChatOpenAI({ model, apiKey: "none", configuration: { baseURL: `${url}/v1` }, useResponsesApi, ...more });

// Runs `body` over chat and over responses.
const checkBoth = (name, body) =>
  check(name, async () => {
    for (const responses of [false, true]) await body(responses);
  });

async function collect(stream) {
  let whole;
  for await (const chunk of stream) whole = whole === undefined ? chunk : whole.concat(chunk);
  return whole;
}

async function running() {
  const lines = (await (await fetch(`${urls[0]}/metrics`)).text()).split("\n");
  const counts = lines.filter((line) => line.startsWith("vllm:num_requests_running"));
  return counts.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

async function until(condition, otherwise) {
  for (let tries = 0; tries < 600; tries++) {
    if (await condition()) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error(otherwise);
}

await checkBoth("chat", async (responses) => {
  const answer = await chat(responses).invoke(greeting);
  assert(answer.text === said, answer.text);
  assert(answer.usage_metadata.output_tokens > 0, "no usage");
});

await checkBoth("chat stream", async (responses) => {
  const answer = await collect(await chat(responses).stream(greeting));
  assert(answer.text === said, answer.text);
  assert(answer.usage_metadata.output_tokens > 0, "no usage");
});

await checkBoth("second turn", async (responses) => {
  const ponder = [...greeting, new HumanMessage("Please ponder this")];
  for (const first of [greeting, ponder]) {
    for (const answer of [await chat(responses).invoke(first), await collect(await chat(responses).stream(first))]) {
      const second = await chat(responses).invoke([...first, answer, followUp]);
      assert(second.text === said, second.text);
    }
  }
});

await checkBoth("tools", async (responses) => {
  const forcing = chat(responses).bindTools([lookUp], { tool_choice: "look_up" });
  const free = chat(responses).bindTools([lookUp]);
  for (const answer of [await forcing.invoke(greeting), await collect(await forcing.stream(greeting))]) {
    const [call] = answer.tool_calls;
    const found = await lookUp.invoke(call);
    assert(found.content === `found ${said}`, found.content);
    const last = await free.invoke([...greeting, answer, found]);
    assert(last.text === said, last.text);
  }
});

await check("thoughts", async () => {
  const asked = "Please ponder this";
  for (const answer of [await chat(false).invoke(asked), await collect(await chat(false).stream(asked))]) {
    assert(answer.additional_kwargs.reasoning_content === "hm", JSON.stringify(answer.additional_kwargs));
    assert(answer.text === said, answer.text);
  }
  const answer = await chat(true).invoke(asked); // in streams it knows summaries only
  assert(answer.additional_kwargs.reasoning.content[0].text === "hm", JSON.stringify(answer.additional_kwargs));
  assert(answer.text === said, answer.text);
});

await checkBoth("structured output", async (responses) => {
  for (const method of ["jsonSchema", "functionCalling"]) {
    const { place } = await chat(responses).withStructuredOutput(schema, { method, name: "place" }).invoke(greeting);
    assert(place === said, place);
  }
});

await checkBoth("overflow", async (responses) => {
  const small = chat(responses, urls[1]);
  const long = "Hello ".repeat(600);
  for (const request of [() => small.invoke(long), async () => collect(await small.stream(long))]) {
    const error = await request().catch((thrown) => thrown);
    assert(ContextOverflowError.isInstance(error), String(error));
  }
});

await checkBoth("cancellation", async (responses) => {
  const endless = "Run a marathon, please.";
  for await (const _ of await chat(responses).stream(endless)) break;
  await until(async () => (await running()) === 0, "the request goes on");
  const controller = new AbortController();
  const ended = collect(await chat(responses).stream(endless, { signal: controller.signal })).catch((error) => error.name);
  await until(async () => (await running()) > 0, "no request came");
  controller.abort();
  assert((await ended) === "AbortError", "it was not ended");
  await until(async () => (await running()) === 0, "the request goes on");
});

await checkBoth("errors", async (responses) => {
  await expect(404, () => chat(responses, urls[0], { model: "other" }).invoke(greeting), "does not exist");
  await expect(400, () => chat(responses, urls[0], { temperature: 3 }).invoke(greeting), "temperature");
});
