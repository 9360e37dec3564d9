// Small pieces of a page, made in one line each, and numbers in words.

/** An element with properties (`class`, `text`, `data`, ARIA and plain attributes, `on...` listeners) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Set a text only where it differs, so that a screen reader hears changes alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function formatNumber(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** `1 token`, `2 tokens`. */
export function formatCount(number, thing) {
  return `${formatNumber(number)} ${thing}${number === 1 ? "" : "s"}`;
}

/** Seconds, to three digits, in the unit that reads best. */
export function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "unknown";
  if (seconds >= 100) return `${formatNumber(seconds)} s`;
  if (seconds >= 1) return `${formatNumber(seconds, 2)} s`;
  const milliseconds = seconds * 1000;
  return `${formatNumber(milliseconds, milliseconds < 10 ? 2 : milliseconds < 100 ? 1 : 0)} ms`;
}

export function formatPercent(part, whole) {
  if (!whole) return "none";
  const percent = (100 * part) / whole;
  return `${formatNumber(percent, percent > 0 && percent < 10 ? 1 : 0)} %`;
}

/** How a sequence is called: its request, and which of its answers it is where that is not the first. */
export function sequenceName({ requestId, index }) {
  return index ? `${requestId} #${index}` : requestId;
}

/** At most `most` of the texts in one line. */
export function listNames(names, most = 8) {
  const rest = names.length - most;
  return rest > 0 ? `${names.slice(0, most).join(", ")} and ${formatNumber(rest)} more` : names.join(", ");
}

/** A table's rows from texts; with `header`, the first cell of each is its header. */
export function fillTable(body, rows) {
  body.replaceChildren(
    ...rows.map(([first, ...others]) => {
      const cells = others.map((text) => make("td", { text: String(text) }));
      return make("tr", {}, make("th", { scope: "row", text: String(first) }), ...cells);
    }),
  );
}

/** A closed `<details>` holding an empty table; `update` is called when it is opened. */
export function makeTable(summary, caption, headings, update) {
  const body = make("tbody");
  const head = make("tr", {}, ...headings.map((text) => make("th", { scope: "col", text })));
  const table = make("table", {}, make("caption", { text: caption }), make("thead", {}, head), body);
  const scroller = make("div", { class: "engine-scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
  const element = make("details", { class: "engine-table", ontoggle: update }, make("summary", { text: summary }), scroller);
  return { element, body };
}

/** A panel is read out while its picture is walked through with keys, and silent while a pointer or the engine moves it. */
export function announceKeys(canvas, panel) {
  const hush = () => panel.removeAttribute("aria-live");
  canvas.addEventListener("keydown", () => panel.setAttribute("aria-live", "polite"));
  canvas.addEventListener("blur", hush);
  canvas.addEventListener("pointermove", hush);
}
