// The table of all limits: a row each, changed where something has changed.
import { classOf, listen, make, say } from "./common.js";

const body = document.querySelector("#limits tbody");
const rows = new Map();
const filter = document.getElementById("filter");

const CELLS = [
  ["rate", "Rate"],
  ["used", "Used"],
  ["free now", "Free now", true],
  ["starting soon", "Starting soon", true],
  ["parked", "Parked", true],
  ["queued", "Queued", true],
  ["drains in", "Drains in", true],
  ["state", "State"],
];

function newRow(part) {
  const link = make("a", { href: part.address }, part.limit);
  const row = make("tr", {}, make("th", { scope: "row" }, link));
  for (const [name, label, isNumber] of CELLS) {
    row.append(make("td", { "data-label": label, "data-name": name, class: isNumber ? "number" : null }));
  }
  const [, rate, used] = row.cells;
  rate.append(make("span", { class: "rate" }), make("span", { class: "by" }));
  const line = make("svg:polyline", { class: "line", "vector-effect": "non-scaling-stroke" });
  const area = make("svg:polygon", { class: "area" });
  const spark = make("svg:svg", { class: "spark", viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
  used.append(spark, make("span", { class: "share" }, make("span"), make("span", { class: "by" })));
  row.cells[5].append(make("span"), make("span", { class: "by" }));
  row.cells[8].append(make("span", { class: "word" }), make("span", { class: "by" }));
  return row;
}

function fill(row, part) {
  row.className = classOf(part);
  const cell = (name) => row.querySelector(`[data-name="${name}"]`);
  say(cell("rate").querySelector(".rate"), part.rate);
  say(cell("rate").querySelector(".by"), part["set by"] && `${part["set by"]}; in the code ${part.code}`);
  say(cell("used").querySelector(".share").firstElementChild, part.used);
  const within = part["used within"];
  say(cell("used").querySelector(".by"), within && within !== "10 s" ? `in the last ${within}` : "");
  const points = part.spark.map((value, place) => `${(place * 120) / (part.spark.length - 1)},${23 - (value * 22) / 100}`);
  cell("used").querySelector(".line").setAttribute("points", points.join(" "));
  cell("used").querySelector(".area").setAttribute("points", ["0,24", ...points, "120,24"].join(" "));
  cell("used").classList.toggle("full", part.share >= 90);
  for (const name of ["free now", "starting soon", "queued", "drains in"]) {
    say(cell(name), part[name].replace("/", "/\u200b"));
    cell(name).classList.toggle("nothing", ["0", "-"].includes(part[name]));
  }
  say(cell("parked").firstElementChild, part.parked);
  say(cell("parked").lastElementChild, part["oldest parked"] === "-" ? "" : `oldest ${part["oldest parked"]}`);
  cell("parked").classList.toggle("nothing", part.parked === "0");
  cell("parked").classList.toggle("alarming", !part.attended);
  say(cell("state").firstElementChild, part.word);
  say(cell("state").lastElementChild, part.state.slice(part.word.length + 1));
}

function sift() {
  const wanted = filter.value.toLowerCase();
  for (const row of rows.values()) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
}

listen("/events", (parts, changed, isWhole) => {
  if (isWhole) {
    for (const [name, row] of rows) {
      if (!parts.has(name)) {
        row.remove();
        rows.delete(name);
      }
    }
  }
  for (const name of changed) {
    const part = parts.get(name);
    if (name === "sentence") {
      say(document.getElementById("sentence"), part);
      continue;
    }
    if (!rows.has(name)) rows.set(name, newRow(part));
    fill(rows.get(name), part);
  }
  const ordered = [...rows].sort(([a], [b]) => parts.get(a).rank - parts.get(b).rank || (a < b ? -1 : 1));
  ordered.forEach(([, row], place) => {
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  document.getElementById("none").hidden = rows.size > 0;
  sift();
});

filter.addEventListener("input", sift);
document.getElementById("find").addEventListener("submit", (event) => event.preventDefault());
