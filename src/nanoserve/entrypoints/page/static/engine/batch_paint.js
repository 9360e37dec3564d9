// Draws what each step was made of: prefill and decode tokens against the budget, below the rows and in line with them.

import { roundTicks, roundUp } from "./ticks.js";

const TICK_ROOM = 64; // pixels for a number on an axis
const CEILINGS = [1, 2, 3, 4, 5, 6, 8, 10];

export function paintBatches({ context, palette, scale, history, budget, top, height, gutter }) {
  const bottom = top + height;
  let most = 0;
  for (let number = scale.from; number < scale.to; number += 1) {
    const { prefillTokens = 0, decodeTokens = 0 } = history.column(number);
    most = Math.max(most, prefillTokens + decodeTokens);
  }
  const isBudgetThere = most * 4 >= budget;
  const ceiling = isBudgetThere ? Math.max(budget, most) : roundUp(Math.max(most, 2), CEILINGS);
  const tall = (tokens) => ((height - 6) * tokens) / ceiling;
  scale.edges.forEach(([left, right], index) => {
    const { prefillTokens = 0, decodeTokens = 0, gap } = history.column(scale.from + index);
    const width = Math.max(right - left - (right - left > 4 ? 1 : 0), 1);
    context.fillStyle = palette.decode;
    context.fillRect(left, bottom - tall(decodeTokens), width, tall(decodeTokens));
    context.fillStyle = palette.prefill;
    context.fillRect(left, bottom - tall(decodeTokens + prefillTokens), width, tall(prefillTokens));
    if (gap) paintGap({ context, palette }, left, width, bottom);
  });
  context.fillStyle = palette.line;
  context.fillRect(scale.left, bottom, scale.right - scale.left, 1);
  context.fillStyle = palette.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("0", gutter - 6, bottom - 3);
  if (isBudgetThere) paintBudget({ context, palette, scale, gutter }, bottom - tall(budget), budget);
  else context.fillText(String(ceiling), gutter - 6, bottom - tall(ceiling));
  context.textAlign = "left";
  if (!isBudgetThere) context.fillText(`the budget of ${budget} is higher than this picture`, scale.left + 4, top + 4);
}

function paintBudget({ context, palette, scale, gutter }, y, budget) {
  context.fillText(String(budget), gutter - 6, y + 1);
  context.strokeStyle = palette.text;
  context.setLineDash([4, 3]);
  context.beginPath();
  context.moveTo(scale.left, Math.round(y) + 0.5);
  context.lineTo(scale.right, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

/** Where a part of the log was left out, or another engine took over. */
function paintGap({ context, palette }, left, width, bottom) {
  context.fillStyle = palette.hatch(context, palette.preempted);
  context.fillRect(left, 0, Math.max(width, 3), bottom);
}

/** The axis that rows and batches share: numbers of steps, or seconds. */
export function paintAxis({ context, palette, scale, history, byTime, y }) {
  context.fillStyle = palette.muted;
  context.textBaseline = "middle";
  context.textAlign = "center";
  let free = scale.left;
  for (const { x, text } of byTime ? timeTicks(scale) : stepTicks(scale, history)) {
    const half = context.measureText(text).width / 2;
    if (x - half < free || x + half > scale.right) continue;
    context.fillText(text, x, y);
    free = x + half + 12;
  }
  context.textAlign = "left";
}

function timeTicks(scale) {
  if (!scale.times) return [];
  const ticks = roundTicks(...scale.times, (scale.right - scale.left) / TICK_ROOM);
  return ticks.map(({ value, text }) => ({ x: scale.placeOf(value), text: `${text} s` }));
}

/** Not every column is a step, and a new engine begins to count anew. */
function stepTicks(scale, history) {
  const stride = roundUp(Math.max(TICK_ROOM / Math.max(scale.columnWidth, 0.01), 1));
  return scale.edges.flatMap(([left, right], index) => {
    const { step } = history.column(scale.from + index);
    return step === undefined || step % stride ? [] : [{ x: (left + right) / 2, text: String(step) }];
  });
}
