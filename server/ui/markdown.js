// A small subset of Markdown as elements: fenced code, headings, lists, quotes, tables, rules, paragraphs; in a line
// code, bold and italic. No links and no images: what a model writes leads nowhere and loads nothing.

import { make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*[^`]*$/;
const HEADING = /^ {0,3}#{1,6}\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ROW = /^\s*\|(.*)\|\s*$/;
const DIVIDER = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;
const CODE = /(`+)([^`]|[^`].*?[^`])\1(?!`)/;
const BOLD = /\*\*(?=\S)(.+?)(?<=\S)\*\*/;
const ITALIC = /(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])/;
const INLINE = new RegExp([CODE, BOLD, ITALIC].map((each) => each.source).join("|"), "g");
const MAX_DEPTH = 4; // of bold in italic in bold, and so on

/** The sources of the blocks of `text`, in order. A stream only ever changes the last ones. */
export function blocks(text) {
  const found = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const begin = at;
    const [kind, end] = blockAt(lines, at);
    at = end;
    if (kind !== "blank") found.push({ kind, source: lines.slice(begin, at).join("\n") });
  }
  return found;
}

/** The element of a block. */
export function element({ kind, source }) {
  const lines = source.split("\n");
  switch (kind) {
    case "fence": {
      const closed = lines.length > 1 && lines.at(-1).trim().startsWith(lines[0].trim().slice(0, 3));
      return make("pre", { tabindex: "0" }, make("code", {}, lines.slice(1, closed ? -1 : undefined).join("\n")));
    }
    case "heading":
      return make("h3", {}, ...inline(HEADING.exec(source)[1]));
    case "rule":
      return make("hr");
    case "list":
      return list(lines);
    case "quote":
      return make("blockquote", {}, ...inline(lines.map((line) => QUOTE.exec(line)[1]).join("\n")));
    case "table":
      return table(lines);
    default:
      return make("p", {}, ...inline(source));
  }
}

/** Nodes for the code, bold and italic of one text. */
export function inline(text, depth = 0) {
  const nodes = [];
  let end = 0;
  for (const match of depth < MAX_DEPTH ? text.matchAll(INLINE) : []) {
    nodes.push(text.slice(end, match.index));
    if (match[2] !== undefined) nodes.push(make("code", {}, match[2]));
    else if (match[3] !== undefined) nodes.push(make("strong", {}, ...inline(match[3], depth + 1)));
    else nodes.push(make("em", {}, ...inline(match[4], depth + 1)));
    end = match.index + match[0].length;
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

// The kind of the block that begins with line `at`, and the number of the line behind it.
function blockAt(lines, at) {
  const line = lines[at];
  if (line.trim() === "") return ["blank", at + 1];
  const fence = FENCE.exec(line);
  if (fence) {
    let end = at + 1;
    while (end < lines.length && !(lines[end].trim().startsWith(fence[1]) && /^[`~]+$/.test(lines[end].trim()))) end++;
    return ["fence", Math.min(end + 1, lines.length)];
  }
  if (HEADING.test(line)) return ["heading", at + 1];
  if (RULE.test(line)) return ["rule", at + 1];
  if (ROW.test(line) && DIVIDER.test(lines[at + 1] ?? "")) return ["table", run(lines, at, (each) => ROW.test(each))];
  if (QUOTE.test(line)) return ["quote", run(lines, at, (each) => QUOTE.test(each))];
  if (ITEM.test(line)) return ["list", run(lines, at, (each) => ITEM.test(each) || /^\s{2,}\S/.test(each))];
  return ["text", run(lines, at, (each, index) => index === at || !begins(each))];
}

const begins = (line) =>
  line.trim() === "" || [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));

function run(lines, at, belongs) {
  let end = at;
  while (end < lines.length && lines[end].trim() !== "" && belongs(lines[end], end)) end++;
  return end;
}

function list(lines) {
  const top = make(/\d/.test(ITEM.exec(lines[0])[2]) ? "ol" : "ul");
  const open = [{ indent: ITEM.exec(lines[0])[1].length, items: top }];
  const start = parseInt(ITEM.exec(lines[0])[2], 10);
  if (start > 1) top.setAttribute("start", start);
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (!item) {
      open.at(-1).items.lastElementChild.append(" ", ...inline(line.trim()));
      continue;
    }
    const indent = item[1].length;
    while (open.length > 1 && indent < open.at(-1).indent) open.pop();
    if (indent > open.at(-1).indent + 1 && open.length < 8) {
      const items = make(/\d/.test(item[2]) ? "ol" : "ul");
      open.at(-1).items.lastElementChild.append(items);
      open.push({ indent, items });
    }
    open.at(-1).items.append(make("li", {}, ...inline(item[3])));
  }
  return top;
}

function table(lines) {
  const cells = (line) => ROW.exec(line)[1].split("|").map((cell) => inline(cell.trim()));
  const head = make("tr", {}, ...cells(lines[0]).map((cell) => make("th", { scope: "col" }, ...cell)));
  const rows = lines.slice(2).map((line) => make("tr", {}, ...cells(line).map((cell) => make("td", {}, ...cell))));
  return make("table", { tabindex: "0" }, make("thead", {}, head), make("tbody", {}, ...rows));
}
