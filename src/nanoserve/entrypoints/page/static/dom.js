// Making elements: text goes in as text, never as HTML.

/**
 * An element with attributes, listeners (`onclick`) and children (elements or texts; null is left out).
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes] `class`, `for` and the rest as in HTML; false and null are left out
 * @param {...(Node | string | null)} children
 */
export function build(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((each) => each !== null && each !== undefined));
  return element;
}

/** The element of this id, which must be there. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}
