import { Pacer } from "./page/pacing.js";
const shown = [];
const pacer = new Pacer((all) => {
  shown.push(all);
  const end = performance.now() + 20; // a page that is slow
  while (performance.now() < end);
});
for (let each = 0; each < 1000; each += 1) {
  if (each % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
  pacer.add(each);
}
pacer.flush();
pacer.flush();
setTimeout(() => console.log(JSON.stringify(shown)), 200);
