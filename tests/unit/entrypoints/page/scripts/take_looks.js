import { Looks } from "./looks.js";
const looks = new Looks();
for (const give of JSON.parse(process.argv[2])) {
  if (give === null) console.log(looks.take());
  else looks.giveBack(give);
}
