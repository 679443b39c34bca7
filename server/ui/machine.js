// Asks for the machine's state while somebody looks at it, and makes rates of two answers.

import { get } from "./api.js";
import { MachineView } from "./machine_view.js";

const EVERY_MS = 1500;
const MODELS_EVERY = 4; // looks at the machine
const REMEMBERED = 60; // rates that the line shows

export class Machine {
  constructor(element, { model, told, listed, refused }) {
    this.element = element;
    this.model = model;
    this.told = told; // called with the state of the server
    this.listed = listed; // called with the models
    this.refused = refused; // called where no key, or a wrong one, was sent
    this.looks = 0;
    this.view = new MachineView(element, () => this.measure());
    this.timer = 0;
    this.forget();
    // Nobody looks: nothing is asked.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  start() {
    if (this.timer) return;
    this.timer = setInterval(() => this.look(), EVERY_MS);
    this.look();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
  }

  /** Begin anew, for another model. */
  forget() {
    this.before = null;
    this.paces = [];
    this.busiest = null;
    this.ceilings = null;
    this.view.clear();
  }

  async look() {
    if (this.asking || (this.before && !this.isShown())) return;
    this.asking = true;
    try {
      if (this.looks++ % MODELS_EVERY === 0) await this.listModels();
      const asked = this.model();
      const answer = await get(`machine?model=${encodeURIComponent(asked)}`);
      const at = performance.now();
      if (!this.timer || asked !== this.model()) return;
      this.show(answer, at);
      this.view.markOld(false);
    } catch (problem) {
      if (problem.status === 401) {
        this.stop();
        this.refused(problem);
      }
      this.looks = 0; // its state among the models is told with its first answer
      this.view.markOld(true);
      this.told(problem.status ? "not ready" : "does not answer"); // it may be, the next time
    } finally {
      this.asking = false;
    }
  }

  show(answer, at) {
    const rates = this.before && ratesOf(this.before, { answer, at });
    this.told(answer.now.state);
    if (rates) this.paces = [...this.paces, rates.output].slice(-REMEMBERED);
    // Between requests nothing runs: what is shown of a step is what the last ones took.
    if (rates?.ranks.some((rank) => rank.steps)) this.busiest = rates.ranks;
    if (!this.before || answer.costs.length || this.before.answer.now.restarts !== answer.now.restarts)
      this.before = { answer, at };
    this.view.show(answer, rates, { paces: this.paces, ranks: this.busiest, ceilings: this.ceilings });
  }

  async listModels() {
    const { data } = await get("v1/models");
    this.listed(data);
    this.view.showModels(data);
  }

  // A narrow screen shows either the chat or the machine.
  isShown() {
    return this.element.offsetParent !== null;
  }

  /** What each node allows; only an idle server can be asked. */
  async measure() {
    try {
      const { profile } = await get("server_info?profile=1&ceilings=1");
      this.ceilings = Object.fromEntries(profile.map(({ rank, ceilings }) => [rank, ceilings]));
      this.view.say("");
    } catch (problem) {
      this.view.say(problem.status === 409 ? "Requests are running. Measure again when the server is idle." : problem.message);
    }
  }
}

// What happened between two answers, a second or a step. `before` and `after` have `answer` and its time in ms.
export function ratesOf(before, after) {
  const passed = (after.at - before.at) / 1000;
  const [old, now] = [before.answer.now, after.answer.now];
  const a = (name) => Math.max(0, now[name] - old[name]) / passed;
  const earlier = Object.fromEntries(before.answer.costs.map((each) => [each.rank, each]));
  const ranks = after.answer.costs
    .filter(({ rank, steps }) => earlier[rank] && steps >= earlier[rank].steps)
    .map((rank) => rankRates(earlier[rank.rank], rank, passed));
  return { output: a("generation_tokens"), prompt: a("prompt_tokens"), steps: a("steps"), ranks };
}

function rankRates(old, now, passed) {
  const steps = now.steps - old.steps;
  const before = Object.fromEntries(old.operations.map((each) => [`${each.name} ${each.format}`, each]));
  const grown = now.operations.map((each) => {
    const was = before[`${each.name} ${each.format}`] ?? { ns: 0, wait_ns: 0, bytes: 0 };
    return { name: each.name, ns: each.ns - was.ns, wait: each.wait_ns - was.wait_ns, bytes: each.bytes - was.bytes };
  });
  const ns = now.native_ns - old.native_ns;
  const sum = (name) => grown.reduce((total, each) => total + each[name], 0);
  return {
    rank: now.rank,
    steps,
    stepMs: steps ? ns / steps / 1e6 : 0,
    gigabytes: sum("bytes") / 1e9 / passed, // a second, of the time that went by
    inSteps: ns ? sum("bytes") / ns : 0, // GB/s while steps ran
    waiting: ns ? sum("wait") / ns : 0,
    operations: grown
      .filter((each) => each.ns > 0)
      .map((each) => ({ ...each, ms: each.ns / steps / 1e6, share: each.ns / ns }))
      .sort((one, other) => other.ns - one.ns),
  };
}
