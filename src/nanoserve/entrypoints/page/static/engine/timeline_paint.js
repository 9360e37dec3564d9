// Draws the rows of the timeline: queued, prefill chunks with their lengths, decode, preempted, and how each one ended.

export const END_MARKS = { stop: "●", length: "■", abort: "✕", timeout: "◔", error: "!", restart: "↯", unknown: "?" };
const TROUBLES = new Set(["abort", "timeout", "error", "restart", "unknown"]);
const DIMMED = 0.25;
const VEIL = 0.7;

/** `scene`: {context, palette, scale, rows, numColumns, position, budget, selected, blocks, top, gutter}. */
export function paintRows(scene) {
  const { context, rows, top, scale, height } = scene;
  for (const { row, y } of rows.drawn) {
    context.globalAlpha = scene.selected && scene.selected !== row.id ? DIMMED : 1;
    paintRowName(scene, row, top + y);
  }
  context.save();
  context.beginPath();
  context.rect(scale.left, 0, scale.right - scale.left + 14, height);
  context.clip();
  for (const { row, y } of rows.drawn) {
    context.globalAlpha = scene.selected && scene.selected !== row.id ? DIMMED : 1;
    paintRow(scene, row, top + y);
  }
  context.restore();
  context.globalAlpha = 1;
}

export function paintRowName({ context, palette, rows, gutter, selected, nameOf }, row, y) {
  const height = rows.rowHeight;
  const gap = height > 8 ? 2 : 0.5;
  context.fillStyle = palette.owner(context, row.look);
  context.fillRect(gutter - 9, y + gap, 5, Math.max(height - 2 * gap, 1));
  if (height < 11) return;
  context.fillStyle = selected === row.id ? palette.text : palette.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(nameOf(row, gutter - 16), gutter - 14, y + height / 2 + 0.5);
  context.textAlign = "left";
}

export function paintRow(scene, row, y) {
  const { context, palette, scale, rows, numColumns, position } = scene;
  const hasEnded = row.endedSerial < position;
  const last = hasEnded ? row.endedColumn : numColumns;
  const middle = y + rows.rowHeight / 2;
  context.fillStyle = palette.line;
  context.fillRect(scale.start(row.born), middle - 0.5, Math.max(scale.stop(last) - scale.start(row.born), 1), 1);
  for (const span of row.spans) {
    if (span.from >= Math.min(numColumns, scale.to) && span.to !== null) break;
    if (span.to !== null && span.to <= scale.from) continue;
    paintSpan(scene, span, y, Math.min(span.to ?? last, last));
  }
  if (hasEnded && last >= scale.from && last <= scale.to) paintEnd(scene, row, scale.stop(last), middle);
}

function paintSpan(scene, span, y, to) {
  const { scale, rows } = scene;
  const left = scale.start(span.from);
  const width = Math.max(scale.stop(to) - left, 1);
  const box = { left, width, middle: y + rows.rowHeight / 2, full: rows.rowHeight - (rows.rowHeight > 8 ? 3 : 1) };
  if (span.kind === "chunk") paintChunk(scene, span, box);
  else if (span.kind === "decode") paintDecode(scene, span, to, box);
  else paintPause(scene, span.kind, box);
}

/** As wide as its step and as high as its share of the budget; what was found in the cache stands before it. */
function paintChunk({ context, palette, budget }, { length, cached }, { left, width, middle, full }) {
  const height = full < 8 ? full : full * (0.45 + 0.55 * Math.min(length / budget, 1));
  const gap = width > 6 ? 1 : 0;
  const share = cached ? Math.min(Math.max(cached / (cached + length), 0.2), 0.6) : 0;
  const hit = cached ? Math.max(share * (width - gap), 2) : 0;
  const top = middle - height / 2;
  context.fillStyle = palette.hit;
  context.fillRect(left, middle - full / 2, hit, full);
  context.fillStyle = palette.prefill;
  context.fillRect(left + hit, top, Math.max(width - gap - hit, 1), height);
  if (full < 10) return;
  context.fillStyle = palette.onBar;
  context.textAlign = "center";
  context.textBaseline = "middle";
  printWithin(context, String(length), left + hit, width - gap - hit, middle);
  if (cached) printWithin(context, String(cached), left, hit, middle);
  context.textAlign = "left";
}

function printWithin(context, text, left, width, middle) {
  if (context.measureText(text).width + 3 <= width) context.fillText(text, left + width / 2, middle + 0.5);
}

/** One bar over all of its steps; each token is a notch where there is room. */
function paintDecode({ context, palette, scale }, span, to, { left, width, middle, full }) {
  const height = Math.max(full * 0.45, 2);
  context.fillStyle = palette.decode;
  context.fillRect(left, middle - height / 2, width, height);
  if (scale.columnWidth < 5 || full < 8) return;
  context.fillStyle = palette.surface;
  for (let column = Math.max(span.from, scale.from); column < to; column += 1) {
    context.fillRect(scale.stop(column + 1) - 1, middle - height / 2, 1, height);
  }
}

function paintPause({ context, palette }, kind, { left, width, middle, full }) {
  const height = Math.max(full * (kind === "queued" ? 0.3 : 0.8), 2);
  context.fillStyle = height < 3 ? palette[kind] : palette.hatch(context, palette[kind]);
  context.fillRect(left, middle - height / 2, width, height);
  if (kind === "queued") return;
  context.fillStyle = palette.preempted;
  context.fillRect(left, middle - full / 2, 2, full);
  context.fillRect(left, middle + height / 2 - 1, width, 1);
  context.fillRect(left, middle - height / 2, width, 1);
}

function paintEnd({ context, palette, rows }, { reason }, x, middle) {
  context.fillStyle = TROUBLES.has(reason) ? palette.preempted : palette.text;
  if (rows.rowHeight < 9) {
    context.fillRect(x, middle - rows.rowHeight / 2, 2, rows.rowHeight);
    return;
  }
  context.textBaseline = "middle";
  context.fillText(END_MARKS[reason] ?? "?", x + 2, middle + 0.5);
}

/** What comes after the moment that is shown, from a column on. */
export function paintVeil({ context, palette, scale }, column, height) {
  const x = scale.start(column);
  context.fillStyle = palette.surface;
  context.globalAlpha = VEIL;
  context.fillRect(x, 0, scale.right + 16 - x, height);
  context.globalAlpha = 1;
  context.fillStyle = palette.accent;
  context.fillRect(x - 1, 0, 2, height);
}

/** A text in the place of the picture. */
export function paintNothing({ context, palette, scale }, y) {
  context.fillStyle = palette.muted;
  [context.textAlign, context.textBaseline] = ["center", "middle"];
  context.fillText("no steps yet", (scale.left + scale.right) / 2, y);
  context.textAlign = "left";
}

/** The end of a text, as much as has room. */
export function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text.slice(-24);
  while (kept.length > 1 && context.measureText(`…${kept}`).width > width) kept = kept.slice(1);
  return `…${kept}`;
}
