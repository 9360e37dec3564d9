// Draws the cells of a block map.

import { FONT, SMALL_FONT } from "./surface.js";

const MOST_STRIPES = 4;
const DIMMED_CELL = 0.22;
const NUMBERED_SIZE = 26;
const LEAST_APART = 6;

/** `scene`: {context, palette, layout, books, lookOf (a key), chosen (a key or null), cursor (a block or null)}. */
export function paintBlocks(scene) {
  const { layout } = scene;
  paintGround(scene);
  for (let index = 0; index < layout.numCells; index += 1) {
    if (layout.perCell === 1) paintBlock(scene, index + 1, layout.corner(index));
    else paintMany(scene, index, layout.corner(index));
  }
  scene.context.globalAlpha = 1;
  paintPlace(scene);
}

/** Free blocks are what is left of the ground; only large ones are drawn apart. */
function paintGround({ context, palette, layout }) {
  const { cell, gap, columns, numCells } = layout;
  context.fillStyle = palette.free;
  if (cell >= LEAST_APART) {
    for (let index = 0; index < numCells; index += 1) {
      const { x, y } = layout.corner(index);
      context.fillRect(x, y, cell - gap, cell - gap);
    }
    return;
  }
  const fullRows = Math.floor(numCells / columns);
  context.fillRect(0, 0, columns * cell, fullRows * cell);
  context.fillRect(0, fullRows * cell, (numCells % columns) * cell, cell);
}

function paintBlock(scene, block, { x, y }) {
  const { context, palette, layout, books, chosen } = scene;
  const size = layout.cell - layout.gap;
  const state = books.state(block);
  const isChosen = chosen !== null && books.owners(block).some(({ key }) => key === chosen);
  context.globalAlpha = chosen !== null && !isChosen && state !== "free" ? DIMMED_CELL : 1;
  if (state === "held" || state === "shared") paintHeld(scene, block, x, y, size);
  else paintUnheld(scene, state, x, y, size);
  if (size >= NUMBERED_SIZE) paintNumber(scene, state, block, x, y);
  if (isChosen && size >= 4) {
    context.strokeStyle = palette.text;
    context.lineWidth = size > 10 ? 2 : 1;
    const inset = context.lineWidth / 2;
    context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  }
}

/** Tokens fill a block from below; owners stand side by side as stripes. */
function paintHeld({ context, palette, books, lookOf }, block, x, y, size) {
  const owners = books.owners(block);
  const stripes = Math.min(owners.length, size >= 8 ? MOST_STRIPES : 1);
  const alpha = context.globalAlpha;
  for (let index = 0; index < stripes; index += 1) {
    const left = x + (index * size) / stripes;
    const width = size / stripes;
    const filled = size * (size >= 8 ? books.fill[block] : 1);
    context.fillStyle = palette.owner(context, lookOf(owners[index].key));
    if (filled < size) {
      context.globalAlpha = alpha * 0.3;
      context.fillRect(left, y, width, size - filled);
      context.globalAlpha = alpha;
    }
    context.fillRect(left, y + size - filled, width, filled);
  }
  if (books.findable.has(block) && size >= 7) {
    context.fillStyle = palette.hit;
    context.fillRect(x, y + size - Math.max(size / 8, 1.5), size, Math.max(size / 8, 1.5));
  }
  if (owners.length > 1) paintCount({ context, palette }, owners.length, x, y, size);
}

function paintNumber({ context, palette, books, lookOf }, state, block, x, y) {
  const isOnColour = (state === "held" || state === "shared") && books.fill[block] > 0.75;
  context.font = SMALL_FONT;
  context.textBaseline = "top";
  if (isOnColour) {
    context.fillStyle = palette.ground(lookOf(books.owner[block].key)); // no stripes behind figures
    context.fillRect(x + 1, y + 1, context.measureText(block).width + 4, 11);
  }
  context.fillStyle = isOnColour ? palette.onBar : state === "free" ? palette.muted : palette.text;
  context.fillText(String(block), x + 3, y + 3);
  context.font = FONT;
}

function paintCount({ context, palette }, count, x, y, size) {
  if (size >= 14) {
    const text = String(count);
    const width = context.measureText(text).width + 6;
    context.fillStyle = palette.surface;
    context.fillRect(x + (size - width) / 2, y + size / 2 - 7, width, 14);
    context.fillStyle = palette.text;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, x + size / 2, y + size / 2 + 0.5);
    context.textAlign = "left";
  } else if (size >= 3) {
    const dot = Math.max(size / 3, 1);
    context.fillStyle = palette.surface;
    context.fillRect(x + (size - dot) / 2, y + (size - dot) / 2, dot, dot);
  }
}

function paintUnheld({ context, palette }, state, x, y, size) {
  if (state !== "cached") return;
  const alpha = context.globalAlpha;
  context.fillStyle = size >= 7 ? palette.hatch(context, palette.hit) : palette.hit;
  context.globalAlpha = alpha * 0.55;
  context.fillRect(x, y, size, size);
  if (size >= 7) {
    context.strokeStyle = palette.hit;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  }
  context.globalAlpha = alpha;
}

/** Several blocks in one cell: how many of them are held, kept, and free, from below. */
function paintMany({ context, palette, layout, books, lookOf, chosen }, index, { x, y }) {
  const size = layout.cell - layout.gap;
  const first = index * layout.perCell + 1;
  const last = Math.min(first + layout.perCell, layout.numBlocks + 1);
  let [held, cached, isChosen, owner] = [0, 0, false, null];
  for (let block = first; block < last; block += 1) {
    const state = books.state(block);
    owner ??= books.owner[block];
    if (state === "cached") cached += 1;
    else if (state !== "free") held += 1;
    isChosen ||= books.owners(block).some(({ key }) => key === chosen);
  }
  const part = size / (last - first);
  context.globalAlpha = chosen === null || isChosen ? 1 : DIMMED_CELL;
  context.fillStyle = palette.hit;
  context.fillRect(x, y + size - (held + cached) * part, size, cached * part);
  if (!owner) return;
  context.fillStyle = palette.owner(context, lookOf(owner.key));
  context.fillRect(x, y + size - held * part, size, held * part);
}

function paintPlace({ context, palette, layout, cursor }) {
  if (cursor === null) return;
  const { x, y } = layout.corner(layout.cellOf(cursor));
  const size = layout.cell - layout.gap;
  context.strokeStyle = palette.surface;
  context.lineWidth = 4;
  context.strokeRect(x, y, size, size);
  context.strokeStyle = palette.accent;
  context.lineWidth = 2;
  context.strokeRect(x, y, size, size);
}
