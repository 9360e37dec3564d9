// JSON as it is typed and as it streams: where its first fault is, and its lines before it is whole.

const TOKEN = /[{}[\],:]|"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?:true|false|null)(?!\w)/y;
const BLANKS = /[ \t\r\n]*/y;
const NAMES = { value: "a value", element: "a value or ]", key: "a name in quotes", member: "a name in quotes or }", colon: "a colon" };

/** A text that is no JSON; the message names the line and the column. */
export class JsonProblem extends Error {}

/** The value that a text stands for. Throws JsonProblem. */
export function readJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new JsonProblem(firstFault(text));
  }
}

/** What comes first that JSON does not have there: browsers say it in different words, and not all say where. */
function firstFault(text) {
  const open = [];
  let expected = "value";
  let place = 0;
  for (;;) {
    BLANKS.lastIndex = place;
    place += BLANKS.exec(text)[0].length;
    TOKEN.lastIndex = place;
    const token = TOKEN.exec(text)?.[0];
    const next = token === undefined ? undefined : follow(token, expected, open);
    if (next === undefined) return `${where(text, place)}: expected ${wanted(expected, open)}, found ${found(text, place)}`;
    expected = next;
    place += token.length;
  }
}

/** What is expected behind a token; undefined where the token is not. `open` has the brackets that are open. */
function follow(token, expected, open) {
  const isValue = expected === "value" || expected === "element";
  if (isValue && (token === "{" || token === "[")) {
    open.push(token);
    return token === "{" ? "member" : "element";
  }
  if ((token === "}" && (expected === "member" || (expected === "next" && open.at(-1) === "{"))) || (token === "]" && (expected === "element" || (expected === "next" && open.at(-1) === "[")))) {
    open.pop();
    return "next";
  }
  if (/^[{}[\],:]$/.test(token)) {
    if (token === "," && expected === "next" && open.length > 0) return open.at(-1) === "{" ? "key" : "value";
    return token === ":" && expected === "colon" ? "value" : undefined;
  }
  if (isValue) return "next";
  return token.startsWith('"') && (expected === "key" || expected === "member") ? "colon" : undefined;
}

function wanted(expected, open) {
  if (expected !== "next") return NAMES[expected];
  return open.length === 0 ? "nothing more" : `a comma or ${open.at(-1) === "{" ? "}" : "]"}`;
}

function found(text, place) {
  if (place >= text.length) return "the end";
  const rest = text.slice(place);
  if (rest[0] !== '"') return rest.match(/^[\w.+-]{1,20}|^./su)[0];
  TOKEN.lastIndex = place;
  const token = TOKEN.exec(text)?.[0];
  if (token !== undefined) return `the text ${token.length > 24 ? `${token.slice(0, 20)}…"` : token}`;
  return /^"(?:[^"\\]|\\.)*"/s.test(rest) ? "a text with a line break or a wrong \\ in it" : "a text without its second quote";
}

function where(text, place) {
  const lines = text.slice(0, place).split("\n");
  return `line ${lines.length}, column ${lines.at(-1).length + 1}`;
}

/** Breaks the lines of a JSON text that comes in pieces, as JSON.stringify does with two spaces. */
export class LineBreaker {
  #depth = 0;
  #isInText = false;
  #isEscaped = false;
  #isEmpty = false;

  /** What a piece adds to the shown text. */
  add(piece) {
    let shown = "";
    for (const each of piece) shown += this.#isInText ? this.#inText(each) : this.#between(each);
    return shown;
  }

  #inText(each) {
    if (!this.#isEscaped && each === '"') this.#isInText = false;
    this.#isEscaped = !this.#isEscaped && each === "\\";
    return each;
  }

  #between(each) {
    if (/\s/.test(each)) return "";
    const isClosing = each === "}" || each === "]";
    let before = "";
    if (isClosing) {
      this.#depth = Math.max(this.#depth - 1, 0);
      if (!this.#isEmpty) before = this.#line();
    } else if (this.#isEmpty) before = this.#line();
    this.#isEmpty = each === "{" || each === "[";
    if (this.#isEmpty) this.#depth += 1;
    this.#isInText = each === '"';
    if (each === ",") return before + each + this.#line();
    return before + each + (each === ":" ? " " : "");
  }

  #line() {
    return `\n${"  ".repeat(this.#depth)}`;
  }
}
