// The machine on the page. Made anew at each answer: it is small, and nothing in it has the focus but two buttons.

import { draw, make, meter } from "./dom.js";
import { treeOf } from "./tree.js";

const OPERATIONS = 10;
const number = (value, digits = 0) =>
  value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const gib = (bytes) => `${number(bytes / 2 ** 30, bytes < 2 ** 33 ? 2 : 0)} GiB`;
const cores = (count) => (count === 1 ? "1 core" : `${number(count)} cores`);
const percent = (part) => `${number(part * 100, part > 0 && part < 0.1 ? 1 : 0)} %`;

export class MachineView {
  constructor(element, measure) {
    this.element = element;
    this.parts = {};
    for (const name of ["models", "pace", "queue", "pages", "prefixes", "nodes", "step"])
      element.append((this.parts[name] = make("section", { hidden: true })));
    this.said = make("p", { role: "status" });
    this.button = make("button", { type: "button", click: measure, title: "The measurement takes a few tenths of a second." },
      "Measure the limits of the nodes");
    this.rank = 0;
  }

  /** Whether what is shown is what the server told last: without an answer it is of a moment ago. */
  markOld(isOld) {
    this.element.classList.toggle("old", isOld);
  }

  /** Show nothing but the models, until another one has told of itself. */
  clear() {
    for (const [name, part] of Object.entries(this.parts)) if (name !== "models") part.hidden = true;
    this.say("");
  }

  /** Say something below the nodes. */
  say(text) {
    this.said.textContent = text;
  }

  /** The models and their states, where several are served. */
  showModels(models) {
    if (!models.some(({ state }) => state)) return;
    const items = models.map(({ id, state }) => make("li", {}, make("span", {}, id), make("span", {}, state ?? "")));
    this.fill("models", "Models", "", make("ul", {}, ...items));
  }

  /** `answer` of GET /machine; `rates` since the one before, if there was one; `lately` what is remembered. */
  show({ now, costs }, rates, { paces, ranks, ceilings }) {
    this.fill("pace", "Now", `${number(now.steps)} steps`, figures(rates, ranks), spark(paces));
    this.fill("queue", "Queue", `${number(now.running)} of ${number(now.max_running)} running`, ...queue(now));
    this.fill("pages", "KV cache", `${number(total(now) * now.page_size)} tokens`, ...pages(now));
    this.fill("prefixes", "Prefixes", hits(now), ...treeOf(now.prefixes));
    const nodes = now.workers.map((worker) => this.worker(worker, rates, ranks, ceilings));
    const told = now.restarts ? `${number(now.restarts)} restarts` : "";
    this.fill("nodes", "Nodes", told, ...nodes, this.button, this.said);
    if (ranks?.length) this.fill("step", "Step time by operation", "", ...this.operations(ranks));
    else if (costs.length)
      this.fill("step", "Step time by operation", "", make("p", {}, "No step has run since this page was opened."));
  }

  fill(name, title, small, ...children) {
    const part = this.parts[name];
    const had = part.contains(document.activeElement) ? document.activeElement : null;
    part.hidden = false;
    part.replaceChildren(make("h2", {}, title, make("small", {}, small)), ...children.filter(Boolean));
    if (had?.isConnected) had.focus();
  }

  worker(worker, rates, lately, ceilings) {
    const rate = rates?.ranks.find(({ rank }) => rank === worker.rank);
    const last = lately?.find(({ rank }) => rank === worker.rank);
    const most = (ceilings?.[worker.rank]?.read_bytes_s ?? 0) / 1e9; // 0: not asked for, or not measured
    const read = rate?.gigabytes ?? 0;
    const measured = most ? ` of ${number(most, 1)}` : "";
    const limit = ceilings && !most ? ", limit not measured" : ""; // weights that fit into a cache, or the reference
    const shown = `${number(read, 1)}${measured} GB/s${limit}`;
    const misplaced = worker.misplaced_pages
      ? make("span", { class: "bad" }, `${number(worker.misplaced_pages)} pages misplaced`)
      : "no pages misplaced";
    const place = `Node ${worker.node} · rank ${worker.rank} · ${cores(worker.cores)} ${worker.isa}`;
    const inSteps = last ? `In steps ${number(last.inSteps, 1)} GB/s, ${percent(last.waiting)} waiting · ` : "";
    return make("div", { class: "rank" },
      make("h3", {}, make("span", {}, place), make("span", {}, shown)),
      most ? meter(`Rank ${worker.rank} reads ${shown}`, [read / most, ""]) : undefined,
      make("p", {}, inSteps, misplaced),
      make("p", {},
        `${gib(worker.weight_bytes)} weights · ${gib(worker.kv_bytes)} KV · ${gib(worker.rss_bytes)} resident`));
  }

  operations(ranks) {
    const chosen = ranks.find(({ rank }) => rank === this.rank) ?? ranks[0];
    const rows = chosen.operations.slice(0, OPERATIONS).map(({ name, ms, share }) =>
      make("tr", {}, make("th", { scope: "row", title: name }, name), make("td", {}, `${number(ms, 3)} ms`),
        make("td", { class: "bar-cell" }, meter(`${name}: ${percent(share)} of a step`, [share, ""]))));
    const head = make("tr", {}, make("th", { scope: "col" }, "Operation"), make("th", { scope: "col" }, ""),
      make("th", { scope: "col" }, "of a step"));
    const parts = [make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))];
    if (ranks.length > 1) parts.unshift(this.choice(ranks, chosen.rank));
    return parts;
  }

  choice(ranks, chosen) {
    const select = make("select", { "aria-label": "Rank", change: () => (this.rank = Number(select.value)) },
      ...ranks.map(({ rank }) => make("option", { value: rank, selected: rank === chosen }, `Rank ${rank}`)));
    return select;
  }
}

function figures(rates, ranks) {
  const entry = (name, value) => make("div", {}, make("dd", {}, value), make("dt", {}, name));
  const step = Math.max(0, ...(ranks ?? []).map(({ stepMs }) => stepMs));
  return make("dl", { class: "large-figures" },
    entry("output tokens/s", rates ? number(rates.output, rates.output < 100 ? 1 : 0) : "–"),
    entry("prompt tokens/s", rates ? number(rates.prompt) : "–"),
    entry("ms per step", step ? number(step, step < 100 ? 1 : 0) : "–"));
}

function spark(paces) {
  if (paces.length < 2) return undefined;
  const most = Math.max(...paces, 1);
  const points = paces.map((pace, index) =>
    `${((index / (paces.length - 1)) * 100).toFixed(1)},${(34 - (pace / most) * 32).toFixed(1)}`);
  const label = `Recent output tokens per second, maximum ${number(most, 1)}`;
  const box = { class: "spark", viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": label };
  return draw("svg", box, draw("polyline", { points: points.join(" ") }));
}

function queue(now) {
  const waits = now.waiting
    ? `${number(now.waiting)} waiting, the longest for ${number(now.longest_wait_s, 1)} s`
    : "0 waiting";
  return [meter(`${now.running} of ${now.max_running} sequences running`, [now.running / now.max_running, ""]),
    make("div", { class: "legend" },
      make("span", { class: "used" }, `${number(now.running)} running`), make("span", {}, waits))];
}

const total = (now) => now.pages_free + now.pages_cached + now.pages_active;

function pages(now) {
  const [used, kept] = [now.pages_active / total(now), now.pages_cached / total(now)];
  return [meter(`${percent(used)} of the pages in use, ${percent(kept)} cached`, [used, ""], [kept, "kept"]),
    make("div", { class: "legend" },
      make("span", { class: "used" }, `${number(now.pages_active)} in use`),
      make("span", { class: "kept" }, `${number(now.pages_cached)} cached`),
      make("span", {}, `${number(now.pages_free)} free pages`))];
}

function hits(now) {
  return now.prefix_query_tokens ? `${percent(now.prefix_hit_tokens / now.prefix_query_tokens)} of prompt tokens cached` : "";
}
