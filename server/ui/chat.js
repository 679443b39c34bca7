// The conversation: what is sent, what comes, and what is kept.

import { Refused, events } from "./api.js";
import { byId } from "./dom.js";
import { Tray } from "./images.js";
import { imageRoom, requestMessages } from "./messages.js";
import { requestFields } from "./settings.js";
import { keep } from "./store.js";
import { AnswerTurn, userTurn } from "./turn.js";

const WAIT_MS = 1000;
const MISTAKES = new Set([400, 413]); // of the request itself: the same one would be refused again
const NEAR_END = 80; // pixels from the end within which the view follows what is written

export class Chat {
  constructor({ messages, settings, model, needKey }) {
    this.messages = messages;
    this.settings = settings;
    this.model = model; // gives the name of the model to ask
    this.needKey = needKey; // called where the server wants a key
    this.aborting = null;
    this.turns = byId("turns");
    this.prompt = byId("prompt");
    this.tray = new Tray(() => imageRoom(this.messages, this.tray.limits));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.prompt.addEventListener("input", () => this.fitPrompt());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
    this.showAll();
  }

  /** Offer to add images within the limits of the model; null: it takes none. */
  offerImages(limits) {
    this.tray.offer(limits);
  }

  /** Send what is in the field, and the images above it. */
  send() {
    const text = this.prompt.value.trim();
    if (this.aborting || !(text || this.tray.hasImages())) return;
    this.prompt.value = "";
    this.fitPrompt();
    const images = this.tray.take();
    const message = { role: "user", content: text, ...(images.length && { images }) };
    this.messages.push(message);
    this.keep();
    this.add(userTurn(message));
    this.answer();
  }

  /** End the answer that is being written; what there is of it stays. */
  stop() {
    this.aborting?.abort();
  }

  /** Forget the conversation. */
  clear() {
    this.stop();
    this.messages.length = 0;
    this.tray.clear();
    this.showAll();
    this.keep();
    this.prompt.focus();
  }

  keep() {
    keep(this.messages, this.settings);
  }

  async answer() {
    const turn = this.newTurn(this.messages.length);
    const answer = { content: "", reasoning: "", calls: [], thoughtMs: 0 };
    const pace = { begin: performance.now(), first: 0, tokens: 0 };
    const aborting = (this.aborting = new AbortController());
    let ended = "";
    let error = "";
    this.add(turn.element);
    this.setBusy(true);
    let frame = 0;
    const paint = () => {
      frame = 0;
      const follow = this.isAtEnd();
      turn.show(answer, this.aborting === aborting);
      byId("figures").textContent = paceText(pace) || waitText(pace);
      if (follow) this.toEnd();
    };
    const waiting = setInterval(() => pace.tokens || paint(), WAIT_MS);
    try {
      for await (const event of events("v1/chat/completions", this.body(), aborting.signal)) {
        take(event, answer, pace);
        ended = event.choices?.[0]?.finish_reason ?? ended;
        frame ||= requestAnimationFrame(paint);
      }
    } catch (problem) {
      if (problem.name === "AbortError") ended = "stopped";
      else error = problem.message;
      if (problem instanceof Refused && problem.status === 401) this.needKey();
      if (problem instanceof Refused && MISTAKES.has(problem.status)) this.markRefused();
    }
    clearInterval(waiting);
    cancelAnimationFrame(frame);
    const isCurrent = this.aborting === aborting;
    if (isCurrent) this.setBusy(false);
    paint();
    byId("figures").textContent = "";
    turn.finish([paceText(pace), ended].filter(Boolean).join(" · "), error);
    if (!isCurrent || !turn.element.isConnected) return; // the conversation was forgotten meanwhile
    this.finish(turn, answer, error);
  }

  markRefused() {
    const last = this.messages.at(-1);
    if (last?.role === "user") last.isRefused = true;
    this.keep();
  }

  finish(turn, answer, error) {
    if (!answer.content && !answer.calls.length && error) return;
    const message = { role: "assistant", content: answer.content };
    if (answer.reasoning) message.reasoning_content = answer.reasoning;
    if (answer.calls.length) {
      message.tool_calls = answer.calls.map(({ id, name, arguments: given }) => (
        { id, type: "function", function: { name, arguments: given } }));
    }
    this.messages.push(message);
    this.keep();
    if (message.tool_calls) this.askResults(turn, message);
    this.toEnd();
  }

  askResults(turn, message) {
    turn.askResults((results) => {
      turn.showResults(results);
      message.tool_calls.forEach((call, index) =>
        this.messages.push({ role: "tool", tool_call_id: call.id, content: results[index] }));
      this.answer();
    });
  }

  /** Have the answer of `turn` made once more; it and what came after it go. */
  again(turn) {
    if (this.aborting) return;
    this.messages.length = turn.at;
    while (this.turns.lastElementChild !== turn.element) this.turns.lastElementChild.remove();
    turn.element.remove();
    this.answer();
  }

  body() {
    const { system } = this.settings;
    const first = system?.trim() ? [{ role: "system", content: system }] : [];
    return {
      model: this.model(),
      messages: [...first, ...requestMessages(this.messages, this.tray.limits)],
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...requestFields(this.settings),
    };
  }

  showAll() {
    this.turns.querySelectorAll(".turn").forEach((turn) => turn.remove());
    byId("greeting").hidden = this.messages.length > 0;
    byId("figures").textContent = "";
    let turn = null;
    let results = [];
    for (const [at, message] of this.messages.entries()) {
      if (message.role === "user") this.add(userTurn(message));
      else if (message.role === "assistant") {
        results = [];
        turn = this.showAnswer(message, at);
      } else turn?.showResults((results = [...results, message.content]));
    }
    const last = this.messages.at(-1);
    if (last?.tool_calls) this.askResults(turn, last);
  }

  // `at` is how many messages come before it.
  newTurn(at) {
    const turn = new AnswerTurn(this.model(), () => this.again(turn));
    turn.at = at;
    return turn;
  }

  showAnswer(message, at) {
    const turn = this.newTurn(at);
    const calls = (message.tool_calls ?? []).map(({ id, function: called }) => ({ id, ...called }));
    turn.show({ content: message.content, reasoning: message.reasoning_content, calls, thoughtMs: 0 }, false);
    turn.summary.textContent = "Thought";
    turn.finish("");
    this.add(turn.element);
    return turn;
  }

  add(turn) {
    byId("greeting").hidden = true;
    this.turns.append(turn);
    this.toEnd();
  }

  setBusy(busy) {
    if (!busy) this.aborting = null;
    this.turns.setAttribute("aria-busy", busy);
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    if (!busy && document.activeElement === document.body) this.prompt.focus();
  }

  isAtEnd() {
    return this.turns.scrollHeight - this.turns.scrollTop - this.turns.clientHeight < NEAR_END;
  }

  toEnd() {
    this.turns.scrollTop = this.turns.scrollHeight;
  }

  fitPrompt() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }
}

function take(event, answer, pace) {
  const delta = event.choices?.[0]?.delta ?? {};
  const now = performance.now();
  if (event.usage) pace.tokens = event.usage.completion_tokens;
  if (pace.tokens && !pace.first) pace.first = now;
  if (pace.tokens) pace.last = now;
  if (delta.reasoning_content) answer.reasoning += delta.reasoning_content;
  if (delta.content) {
    if (answer.reasoning && !answer.content) answer.thoughtMs = now - pace.begin;
    answer.content += delta.content;
  }
  for (const part of delta.tool_calls ?? []) {
    const call = (answer.calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name += part.function.name;
    if (part.function?.arguments) call.arguments += part.function.arguments;
  }
}

const waitText = ({ begin }) => `waiting for ${Math.round((performance.now() - begin) / 1000)} s`;

// The first token is not part of the pace: it comes when the prompt has been computed.
function paceText({ begin, first, last, tokens }) {
  if (!tokens) return "";
  const passed = (last - first) / 1000;
  const pace = tokens > 1 && passed > 0 ? ` · ${((tokens - 1) / passed).toFixed(1)} tokens/s` : "";
  const waited = ((first - begin) / 1000).toFixed(2);
  return `${tokens} ${tokens === 1 ? "token" : "tokens"}${pace} · first after ${waited} s`;
}
