// Elements without markup: whatever comes from a model or a server becomes text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** An element; `attributes` are set as such, but for functions, which listen to the event of their name. */
export function make(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

/** A bar of parts: `[width in 0..1, class]` each. The policy of the page has no inline styles, but these are none. */
export function meter(label, ...parts) {
  const bar = make("div", { class: "meter", role: "img", "aria-label": label });
  for (const [part, kind] of parts) {
    const piece = make("i", { class: kind });
    piece.style.width = `${Math.min(100, Math.max(0, part * 100)).toFixed(2)}%`;
    bar.append(piece);
  }
  return bar;
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}
