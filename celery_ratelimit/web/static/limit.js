// The page of one limit.
import { classOf, listen, make, post, say } from "./common.js";
import { draw } from "./chart.js";

const root = document.getElementById("limit");
const at = (id) => document.getElementById(id);
let shown = new Map();
let range = document.querySelector('[data-range][aria-pressed="true"]').dataset.range;

const heads = (texts) => make("tr", {}, ...texts.map((text) => make("th", { scope: "col" }, text)));
const row = (cells, labels) => make("tr", {}, ...cells.map((text, place) => make("td", { "data-label": labels[place] }, text)));
const words = (texts) => texts.map((text) => text.charAt(0) + text.slice(1).toLowerCase());
const pairs = (list) => list.flatMap(([what, said]) => [make("dt", {}, what), make("dd", {}, said)]);

function bar(label, share, said) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${share}%`;
  return make("div", { class: "one" }, make("span", { class: "name", title: label }, label), make("span", { class: "track" }, fill), make("span", { class: "many" }, said));
}

function chart() {
  const part = shown.get(`chart ${range}`);
  if (!part) return;
  draw(at("chart"), part);
  at("marks").replaceChildren(...part.marks.map(([, text]) => make("li", {}, text)));
  at("marks").hidden = part.marks.length === 0;
  say(at("hint"), part.limits.every((limit) => limit === null) ? "(no one rate holds for all of it)" : "");
}

const FILL = {
  state(part) {
    at("state").className = classOf(part);
    say(at("state").firstElementChild, part.state);
    const used = part.used === "-" ? "nothing" : part.used;
    const share = part.share === null ? "" : `, ${part.share} %`;
    const within = part["used within"] && ` (average of the last ${part["used within"]})`;
    say(at("used"), `${used} used${share}${within}`);
  },
  facts: (part) => at("facts").replaceChildren(...pairs(part)),
  results: (part) => at("results").replaceChildren(...pairs(part)),
  waits(part) {
    say(at("p50"), part.p50);
    say(at("p95"), part.p95);
    say(at("number"), part.number);
    at("waits").replaceChildren(...part.bars.filter(([, share]) => share > 0).map(([label, share]) => bar(label, share, `${share} %`)));
  },
  users(part) {
    const lists = Object.entries(part).map(([kind, users]) =>
      make("div", { class: "bars" }, make("h3", {}, `${kind}s`), ...users.map(([name, permits, share]) => bar(name, share, permits))),
    );
    if (lists.length) at("users").replaceChildren(...lists);
  },
  history(part) {
    const labels = words(shown.get("history heads"));
    at("history").tHead.replaceChildren(...(part.length ? [heads(labels)] : []));
    at("history").tBodies[0].replaceChildren(...part.map((cells) => row(cells, labels)));
    at("unchanged").hidden = part.length > 0;
  },
  weights(part) {
    at("shares").hidden = part.length === 0;
    at("shares").querySelector("tbody").replaceChildren(...part.map((cells) => row(cells, ["Share", "Weight", "In the code", "Changed by"])));
  },
};

listen(root.dataset.events, (parts, changed, isWhole) => {
  shown = parts;
  for (const name of changed) FILL[name]?.(parts.get(name));
  if (isWhole || changed.some((name) => name === `chart ${range}`)) chart();
  const isEmpty = parked.total === 0 && parts.get("parked") === 0;
  if (!isEmpty && performance.now() >= nextLook && !isInUse(at("parked"))) look(Math.min(parked.page, parked.pages));
});

for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    range = button.dataset.range;
    for (const each of document.querySelectorAll("[data-range]")) each.setAttribute("aria-pressed", String(each === button));
    chart();
  });
}

// Parked tasks: each open page reads its own, and waits for twenty times as long as the last look took.
const BUSY = 20;
let parked = { page: 1, pages: 1 };
let looks = 0;
let nextLook = 0;

/** Whether text in the element is selected, or a link in it has the focus. */
const isInUse = (element) => element.contains(document.activeElement) || (!getSelection().isCollapsed && element.contains(getSelection().anchorNode));

async function look(page) {
  const [number, began] = [++looks, performance.now()];
  nextLook = Infinity;
  const answer = await fetch(`${root.dataset.parked}&page=${page}`).catch(() => null);
  const said = await answer?.json().catch(() => null);
  if (number !== looks) return; // another page was asked for meanwhile
  nextLook = performance.now() + BUSY * (performance.now() - began);
  if (!said || said.error) {
    say(at("page"), said?.error ?? "The parked tasks cannot be read.");
    return;
  }
  parked = said;
  const labels = words([...said.heads, "CALLED WITH"]);
  const body = said.rows.map((cells, place) => {
    const made = row(cells, labels);
    made.cells[3].replaceChildren(make("a", { href: said.tasks[place].address }, cells[3]));
    return made;
  });
  at("parked").tHead.replaceChildren(...(body.length ? [heads(labels)] : []));
  at("parked").tBodies[0].replaceChildren(...body);
  say(at("page"), said.pages > 1 ? `${said.total} parked, page ${said.page} of ${said.pages}` : `${said.total} parked`);
  at("previous").disabled = said.page <= 1;
  at("next").disabled = said.page >= said.pages;
}

at("previous").addEventListener("click", () => look(parked.page - 1));
at("next").addEventListener("click", () => look(parked.page + 1));

// Changes, where they are allowed.
const form = at("change");
if (form) {
  const choose = () => {
    for (const field of form.querySelectorAll("[data-for]")) {
      const isMeant = field.dataset.for.split(" ").includes(form.elements.verb.value);
      field.hidden = !isMeant;
      field.querySelector("input").disabled = !isMeant;
    }
    form.elements.rate.required = form.elements.verb.value === "set";
  };
  form.elements.verb.addEventListener("change", choose);
  choose();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { verb, ids, key } = form.elements;
    const isAll = verb.value === "release" && !ids.value && !key.value && shown.get("parked") > 0;
    if (isAll && !confirm(`Send all ${shown.get("parked")} parked tasks back to the queue now? They still need permits.`)) return;
    const button = form.querySelector("button");
    button.disabled = true;
    const said = await post(root.dataset.address, Object.fromEntries(new FormData(form)));
    button.disabled = false;
    at("done").classList.toggle("wrong", Boolean(said.error));
    say(at("done"), said.error ?? said.said);
    if (!said.error) {
      form.elements.reason.value = "";
      if (form.elements.verb.value === "release") look(1);
    }
  });
}
