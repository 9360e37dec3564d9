const said = [];
globalThis.document = { getElementById: () => ({ set textContent(text) { said.push(text); } }) };
const { SpokenText } = await import("./page/announcer.js");
let now = 0;
let due = null;
performance.now = () => now;
globalThis.setTimeout = (work, delay) => (due = { work, at: now + delay });
globalThis.clearTimeout = () => (due = null);
function pass(milliseconds) {
  now += milliseconds;
  if (!due || due.at > now) return;
  const { work } = due;
  due = null;
  work();
}
const spoken = new SpokenText();
for (const piece of JSON.parse(process.argv[2])) {
  spoken.add(piece);
  pass(10);
}
pass(2000);
spoken.end("Stopped.");
console.log(JSON.stringify(said));
