import { TimelineCrowd } from "./timeline_crowd.js";
const [numSeats, numSteps] = process.argv.slice(2).map(Number);
const half = numSteps / 2;
const rowsOf = (seat) => [["first", 0, half], ["second", half, null]].map(([name, from, to]) => ({
  id: `${name} ${seat}`, spans: [{ kind: "queued", from: 0, to: from }, { kind: "decode", seat, from, to }],
}));
const alive = Array.from({ length: numSeats }, (_, seat) => rowsOf(seat)).flat();
const crowd = new TimelineCrowd();
crowd.arrange(alive, { from: 0, to: numSteps, height: 300 });
const strips = new Map();
for (let y = 0; y < crowd.height; y += 0.5) {
  if (crowd.seatsAt(y)[1] > 0) strips.set(crowd.nameAt(y), [y, ...crowd.seatsAt(y)]);
}
const ids = (column, y) => crowd.at(column, y).map(({ id }) => id);
console.log(JSON.stringify({
  height: crowd.height, lane: crowd.laneHeight,
  strips: [...strips].map(([name, [y, first, end]]) => ({ name, first, end, early: ids(0, y), late: ids(half, y) })),
  all: ids(half),
}));
