// The tree of cached prefixes as a drawing: from left to right the pages of a prefix, below each other what forks.

import { draw, make } from "./dom.js";

const WIDTH = 340;
const ROW = 9;
const MOST_ROWS = 40;

const count = (value, one, several) => `${value.toLocaleString("en")} ${value === 1 ? one : several}`;

/** Elements that show `prefixes` of GET /machine. */
export function treeOf(prefixes) {
  if (!prefixes.branches.length) return [make("p", {}, "No prefixes are cached yet.")];
  const placed = place(prefixes.branches);
  const rows = Math.min(MOST_ROWS, Math.max(...placed.map(({ row }) => row)) + 1);
  const deepest = Math.max(...placed.map(({ begin, pages }) => begin + pages));
  const scale = WIDTH / deepest;
  const branches = count(prefixes.branches.length, "branch", "branches");
  const label = `${count(prefixes.pages, "page", "pages")} in ${branches}; the longest prefix has ${count(deepest, "page", "pages")}`;
  const rects = placed.filter(({ row }) => row < rows).map(({ begin, pages, row, used }) => {
    const box = { x: begin * scale, y: row * ROW, width: Math.max(2, pages * scale), height: ROW - 1, rx: 2 };
    const said = `${count(pages, "page", "pages")}${used ? ", in use" : ""}`;
    return draw("rect", { ...box, class: used ? "used" : "kept" }, draw("title", {}, said));
  });
  const rest = prefixes.complete && rows < MOST_ROWS ? "" : " Only the largest branches are shown.";
  return [
    draw("svg", { class: "tree", viewBox: `0 0 ${WIDTH} ${rows * ROW}`, role: "img", "aria-label": label }, ...rects),
    make("p", {}, `${label}.${rest}`),
  ];
}

// Each branch with the page at which it begins and a row: the first child stays in its parent's.
function place(branches) {
  const children = branches.map(() => []);
  const tops = [];
  branches.forEach(({ parent }, index) => (parent < 0 ? tops : children[parent]).push(index));
  const placed = [];
  let row = -1;
  const stack = tops.reverse().map((index) => ({ index, begin: 0, isFirst: false }));
  while (stack.length) {
    const { index, begin, isFirst } = stack.pop();
    if (!isFirst) row++;
    const { pages, used } = branches[index];
    placed.push({ begin, pages, used, row });
    const below = children[index].map((child, place) => ({ index: child, begin: begin + pages, isFirst: place === 0 }));
    stack.push(...below.reverse());
  }
  return placed;
}
