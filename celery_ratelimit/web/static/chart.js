// A picture of what was used of a limit over time, what the limit was, and when it was changed.
import { make } from "./common.js";

const WIDTH = 900;
const HEIGHT = 200;

/** Replace what is in `place` by a picture of `chart`, as the server tells it. */
export function draw(place, chart) {
  const { values, limits, marks, ticks } = chart;
  const known = limits.filter((limit) => limit !== null);
  const most = Math.max(...values, ...known, 1e-9) * 1.08;
  const x = (bar) => (bar * WIDTH) / values.length;
  const y = (value) => HEIGHT - (value * HEIGHT) / most;
  const picture = make("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const outline = values.flatMap((value, bar) => [`${x(bar)},${y(value)}`, `${x(bar + 1)},${y(value)}`]);
  picture.append(make("svg:polygon", { class: "area", points: ["0," + HEIGHT, ...outline, `${WIDTH},${HEIGHT}`].join(" ") }));
  picture.append(make("svg:polyline", { class: "line", points: outline.join(" "), "vector-effect": "non-scaling-stroke" }));
  let steps = [];
  const end = () => {
    if (steps.length) {
      picture.append(make("svg:polyline", { class: "limit", points: steps.join(" "), "vector-effect": "non-scaling-stroke" }));
    }
    steps = [];
  };
  limits.forEach((limit, bar) => (limit === null ? end() : steps.push(`${x(bar)},${y(limit)}`, `${x(bar + 1)},${y(limit)}`)));
  end();
  marks.forEach(([bar, text]) => {
    const line = make("svg:line", { class: "mark", x1: x(bar), x2: x(bar), y1: 0, y2: HEIGHT, "vector-effect": "non-scaling-stroke" });
    line.append(make("svg:title", {}, text));
    picture.append(line);
  });
  // Numbers and times beside the picture, which is stretched, and not in it: they keep their shape.
  const last = known.length ? known[known.length - 1] : Math.max(...values);
  const top = make("span", { class: "most" }, `${short(last)} a ${chart.unit}`);
  top.style.bottom = `calc(1.4rem + ${(11 * last) / most}rem)`;
  const times = make("div", { class: "ticks" });
  for (const [bar, text] of [...ticks].reverse()) {
    const tick = make("span", {}, text);
    tick.style.left = `${(100 * (bar + 0.5)) / values.length}%`;
    times.append(tick);
  }
  const numbers = make("div", { class: "numbers" });
  marks.forEach(([bar], number) => {
    const place = make("span", {}, String(number + 1));
    place.style.left = `${(100 * bar) / values.length}%`;
    numbers.append(place);
  });
  place.replaceChildren(numbers, picture, top, times);
}

export function short(number) {
  return number >= 100 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(3)));
}
