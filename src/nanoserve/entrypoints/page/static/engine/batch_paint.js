// Draws what each step was made of: prefill and decode tokens against the budget, below the rows and in line with them.

export function paintBatches({ context, palette, scale, history, budget, top, height, gutter }) {
  const bottom = top + height;
  let most = 0;
  for (let number = scale.from; number < scale.to; number += 1) {
    const { prefillTokens = 0, decodeTokens = 0 } = history.column(number);
    most = Math.max(most, prefillTokens + decodeTokens);
  }
  const isBudgetThere = most * 4 >= budget;
  const ceiling = isBudgetThere ? Math.max(budget, most) : Math.max(most * 1.25, 1);
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
  else context.fillText(String(most), gutter - 6, bottom - tall(most));
  context.textAlign = "left";
  if (!isBudgetThere) context.fillText(`budget ${budget}: above the picture`, scale.left + 4, top + 4);
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
  const numberOf = (column) => history.column(column)?.step;
  let free = scale.left;
  for (let column = scale.from; column < scale.to; column += 1) {
    const [left, right] = scale.edges[column - scale.from];
    const { step, endedAt, at } = history.column(column);
    if (step === undefined) continue;
    const isRound = byTime || step % niceStride(60 / Math.max(scale.columnWidth, 0.01)) === 0;
    const text = byTime ? `${(endedAt ?? at).toFixed(2)} s` : String(numberOf(column));
    const x = byTime ? right : (left + right) / 2;
    const half = context.measureText(text).width / 2;
    if (!isRound || x - half < free + 12 || x + half > scale.right) continue;
    context.fillText(text, x, y);
    free = x + half + (byTime ? 30 : 0);
  }
  context.textAlign = "left";
}

function niceStride(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((stride) => stride >= least);
}
