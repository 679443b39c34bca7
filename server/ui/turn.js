// A turn of the conversation on the page.

import { make } from "./dom.js";
import { picture } from "./images.js";
import { blocks, element } from "./markdown.js";

const SAID_MS = 1500;
const seconds = (ms) => `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;

/** What the user said, with its images; a reload leaves their names. */
export function userTurn({ content, images = [] }) {
  const shown = images.map((image) =>
    make("li", {}, image.file ? picture(image) : `The image “${image.name}” was lost by the reload.`));
  return make("article", { class: "turn user", "aria-label": "You" }, make("h2", {}, "You"),
    shown.length ? make("ul", { class: "pictures", "aria-label": "Images" }, ...shown) : undefined,
    content ? make("div", { class: "text" }, content) : undefined);
}

/** An answer, as it comes and when it is there. `again` is called to have it made once more. */
export class AnswerTurn {
  constructor(name, again) {
    this.thought = make("div");
    this.summary = make("summary", {}, "Thinking");
    this.fold = make("details", { class: "thought", hidden: true }, this.summary, this.thought);
    this.prose = make("div", { class: "prose" });
    this.calls = make("div");
    this.figures = make("span");
    this.copying = make("button", { type: "button", class: "quiet", click: () => this.copy() }, "Copy");
    this.footer = make("footer", { hidden: true }, this.figures, this.copying,
      make("button", { type: "button", class: "quiet", click: again }, "Again"));
    this.element = make("article", { class: "turn answer", "aria-label": name }, make("h2", {}, name),
      this.fold, this.prose, this.calls, this.footer);
    this.sources = [];
    this.text = "";
  }

  /** Show `answer`: content, reasoning and calls so far. Blocks that have not changed keep their elements. */
  show(answer, isWriting) {
    this.text = answer.content;
    this.fold.hidden = !answer.reasoning;
    if (answer.reasoning) this.thought.textContent = answer.reasoning;
    const found = blocks(answer.content);
    let same = 0;
    while (same < found.length && found[same].source === this.sources[same]) same++;
    while (this.prose.children.length > same) this.prose.lastElementChild.remove();
    this.prose.append(...found.slice(same).map(element));
    this.sources = found.map((each) => each.source);
    this.prose.classList.toggle("caret", isWriting);
    if (answer.thoughtMs) this.summary.textContent = `Thought for ${seconds(answer.thoughtMs)}`;
    this.calls.replaceChildren(...answer.calls.map(callOf));
  }

  /** Say how it ended: figures, or an error. */
  finish(figures, error) {
    this.figures.textContent = figures;
    this.figures.hidden = !figures;
    this.copying.hidden = !this.text;
    this.footer.hidden = false;
    if (error) this.footer.before(make("p", { class: "notice", role: "alert" }, error));
  }

  /** Ask for the results of the calls, and give them to `send`, in the order of the calls. */
  askResults(send) {
    const fields = [...this.calls.children].map((call, index) => {
      const field = make("textarea", { rows: "2", class: "code", spellcheck: "false" });
      call.append(make("label", {}, `Result of call ${index + 1}`, field));
      return field;
    });
    const button = make("button", { type: "button", class: "primary", click: () => send(fields.map((f) => f.value)) },
      fields.length > 1 ? "Send results" : "Send result");
    this.calls.append(make("div", { class: "results" }, button));
    fields[0].focus();
  }

  /** Show the results that were given, in place of the fields for them. */
  showResults(results) {
    this.calls.querySelectorAll("label, .results").forEach((each) => each.remove());
    results.forEach((result, index) =>
      this.calls.children[index]?.append(make("div", { class: "result" }, result || "(nothing)")));
  }

  // Browsers have a clipboard for pages that came over TLS or from this machine; for others the text is marked.
  async copy() {
    if (navigator.clipboard) await navigator.clipboard.writeText(this.text);
    else getSelection().selectAllChildren(this.prose);
    this.copying.textContent = navigator.clipboard ? "Copied" : "Marked";
    setTimeout(() => (this.copying.textContent = "Copy"), SAID_MS);
  }
}

function callOf(call) {
  return make("div", { class: "call" }, make("div", {}, make("b", {}, call.name || "…"), `(${call.arguments})`));
}
