// Round numbers for axes: 1, 2 or 5 times a power of ten.

/** The least round number that is not below another one, which is above 0. */
export function roundUp(least, factors = [1, 2, 5, 10]) {
  const power = 10 ** Math.floor(Math.log10(least));
  return factors.map((factor) => factor * power).find((each) => each >= least * (1 - 1e-9));
}

/** The multiples of a round number in [from, to], at most so many of them, each with its text. */
export function roundTicks(from, to, most) {
  const stride = roundUp(Math.max((to - from) / Math.max(most, 1), 1e-9));
  const digits = Math.max(0, -Math.floor(Math.log10(stride) + 1e-9));
  const first = Math.ceil(from / stride - 1e-9);
  const count = Math.floor(to / stride + 1e-9) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, index) => {
    const value = (first + index) * stride;
    return { value, text: value.toFixed(digits) };
  });
}
