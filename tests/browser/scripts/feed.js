async (steps) => {
  const [lives, tall, most] = [96, 6, 8]; // steps that a sequence lives, blocks that it holds, sequences at once
  const record = (step) => {
    const [arrived, happened, ended, kv, words] = [[], [], [], [], []];
    const isChange = step % (lives / most) === 1;
    const newest = Math.floor((step - 1) / (lives / most));
    const chunks = [];
    if (isChange) {
      if (newest >= most) ended.push([newest - most, "length", lives]);
      if (newest >= most) kv.push(["return", newest - most]);
      const blocks = Array.from({ length: tall }, (_, index) => 1 + (newest % (2 * most)) * tall + index);
      arrived.push([newest, `request-${newest}`, 0, 64, 64 + lives]);
      happened.push(["admit", newest, newest % most, 0, false]);
      kv.push(["give", newest, 0, [blocks]], ["share", newest, 4, []]);
      chunks.push([newest, 0, 64, true]);
      words.push([newest, Array.from({ length: 64 }, (_, token) => token), { 1: "one" }]);
    }
    const first = Math.max(newest - most + 1, 0);
    const living = Array.from({ length: newest - first + 1 }, (_, index) => first + index);
    const decoding = isChange ? living.slice(0, -1) : step % (lives / most) === 2 ? living : null;
    happened.push(["step", step, chunks, decoding]);
    for (const key of living) words.push([key, [key % 50], { [key % 50]: "word " }]);
    return ["turn", step / 100, arrived, happened, ended, step - 1 || null, living.length, kv, 0, 0, words];
  };
  for (let end = fed + steps; fed < end; ) {
    const part = Array.from({ length: 100 }, (_, index) => record(fed + index + 1));
    feed(part);
    fed += part.length;
    await new Promise((done) => requestAnimationFrame(done));
  }
}
