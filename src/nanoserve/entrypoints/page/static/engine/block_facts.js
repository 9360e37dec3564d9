// A block in words: its state, who holds it for which tokens, and the whole table of one of them.

import { formatCount, make, sequenceName } from "./dom.js";

const AROUND = 16;
const MOST_OWNERS = 8;
const STATES = {
  held: "held by one sequence",
  shared: "shared",
  cached: "free; its content is kept for a prefix hit",
  free: "free",
};

/** Elements that tell of a block; `chosen` is the key of the sequence whose table is shown, where it holds the block. */
export function describeBlock({ books, block, blockSize, chosen, readWords }) {
  const owners = books.owners(block);
  const state = books.state(block);
  const count = state === "shared" ? ` by ${owners.length} sequences` : "";
  const findable = books.findable.has(block) && owners.length ? ", in the prefix cache" : "";
  const shown = [make("p", { class: "engine-strong", text: `Block ${block}: ${STATES[state]}${count}${findable}` })];
  if (!owners.length) return shown;
  const isState = owners[0].states.some(([group]) => group === books.group);
  const lines = owners.slice(0, MOST_OWNERS).map((owner) => {
    if (isState) return make("li", { text: `${sequenceName(owner)}: ${describeState(books.group, owner, block)}` });
    const { start, end, index } = tokensIn(books.group, owner, block, blockSize);
    const tokens = end > start ? `tokens [${start}, ${end})` : "no tokens yet";
    return make("li", { text: `${sequenceName(owner)}: ${tokens}, entry ${index} of its table` });
  });
  if (owners.length > MOST_OWNERS) lines.push(make("li", { text: `and ${owners.length - MOST_OWNERS} more` }));
  shown.push(make("ul", {}, ...lines));
  if (isState) return shown;
  const owner = owners.find(({ key }) => key === chosen) ?? owners[0];
  const { start, end } = tokensIn(books.group, owner, block, blockSize);
  const words = readWords(owner, start, end);
  if (words) shown.push(make("p", { class: "engine-words", text: words }));
  return [...shown, ...describeTable(owner, owner.tables[books.group], block)];
}

/** What a sequence has in a slot of a recurrent group. */
function describeState(group, owner, slot) {
  const [, live] = owner.states.find(([each]) => each === group);
  return slot === live ? `its live state, after ${formatCount(owner.numScheduled, "token")}` : "the newest snapshot of its state";
}

/** Which tokens of a sequence a block holds, and its place in the table. */
function tokensIn(group, owner, block, blockSize) {
  const index = owner.tables[group].indexOf(block);
  const start = index * blockSize;
  return { index, start, end: Math.max(Math.min(start + blockSize, owner.numScheduled), start) };
}

/** A block table as a list with one entry marked; of a long one, what lies around it. */
function describeTable(owner, table, block) {
  const at = table.indexOf(block);
  const from = table.length > 3 * AROUND ? Math.max(at - AROUND, 0) : 0;
  const to = table.length > 3 * AROUND ? Math.min(at + AROUND + 1, table.length) : table.length;
  const entries = table.slice(from, to).map((each, offset) =>
    make("li", {
      class: each ? null : "engine-sink",
      "aria-current": from + offset === at ? "true" : null,
      text: each ? String(each) : "–",
    }),
  );
  if (from) entries.unshift(make("li", { class: "engine-sink", text: `${from} before` }));
  if (to < table.length) entries.push(make("li", { class: "engine-sink", text: `${table.length - to} after` }));
  const title = `Block table of ${sequenceName(owner)}, ${formatCount(table.length, "block")}`;
  return [make("p", { text: title }), make("ol", { class: "engine-block-table", "aria-label": title }, ...entries)];
}
