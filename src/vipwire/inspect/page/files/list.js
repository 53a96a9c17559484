// The list of Services: ten thousand rows, of which only those in sight are elements.

import { byId, count, el, plural, rate, tone } from "./words.js";
import { known } from "./stream.js";

const HEIGHT = 58;
const AROUND = 6;
const list = byId("list");
const inner = el("div", { class: "inner", role: "presentation" });
list.append(inner);
let found = [];
let at = -1;
let chosen = "";
let choose = () => {};

const IS = {
  drained: (row) => row.drained > 0,
  ejected: (row) => row.ejected > 0,
  failing: (row) => (known.totals.get(row.name)?.failing ?? 0) > 0,
  busy: (row) => (known.totals.get(row.name)?.fresh ?? 0) > 0,
  drifted: (row) => !["as planned", "-"].includes(row.state),
  empty: (row) => row.used === 0,
};

export function begin(onChoose) {
  choose = onChoose;
  byId("search").addEventListener("input", () => { at = -1; refresh(true); });
  byId("sort").addEventListener("change", () => refresh(true));
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  new ResizeObserver(draw).observe(list);
  list.addEventListener("keydown", keyed);
  byId("search").addEventListener("keydown", keyed);
  inner.addEventListener("click", (event) => {
    const row = event.target.closest("[data-at]");
    if (row) move(Number(row.dataset.at), true);
  });
}

function keyed(event) {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -1e9, End: 1e9 }[event.key];
  if (step && !(event.target.id === "search" && Math.abs(step) > 8)) {
    event.preventDefault();
    move(Math.min(found.length - 1, Math.max(0, at + step)), false);
  } else if (event.key === "Enter" && found.length) {
    event.preventDefault();
    move(Math.max(at, 0), true);
  }
}

function move(to, open) {
  at = to;
  const top = at * HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + HEIGHT - list.clientHeight;
  draw();
  if (open && found[at]) choose(found[at].name);
}

export function select(name) {
  chosen = name;
  draw();
}

function matching(text) {
  const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [key, value] = [word.split(":")[0], word.slice(word.indexOf(":") + 1)];
    if (key === "is" && IS[value]) return IS[value];
    if (key === "ns" && word.includes(":")) return (row) => row.name.startsWith(`${value}/`);
    if (key === "type" && word.includes(":")) return (row) => row.type.toLowerCase().startsWith(value);
    return (row) => row.words.includes(word);
  });
  return (row) => tests.every((test) => test(row));
}

const ORDERS = {
  name: (one, other) => (one.name < other.name ? -1 : 1),
  rate: (one, other) => (known.totals.get(other.name)?.fresh ?? 0) - (known.totals.get(one.name)?.fresh ?? 0) || ORDERS.name(one, other),
  state: (one, other) => trouble(other) - trouble(one) || ORDERS.name(one, other),
};

function trouble(row) {
  return 8 * IS.drifted(row) + 4 * IS.failing(row) + 2 * (IS.ejected(row) || IS.drained(row)) + IS.empty(row);
}

// Search and sort anew; the order of rates alone may change without a word of the server.
export function refresh(must) {
  const words = byId("search").value;
  if (!must && byId("sort").value === "name" && !/is:(busy|failing)/.test(words)) return draw();
  const name = found[at]?.name;
  found = [...known.rows.values()].filter(matching(words)).sort(ORDERS[byId("sort").value]);
  if (name) at = found.findIndex((row) => row.name === name);
  const all = known.rows.size;
  byId("found").textContent = !known.whole || !known.head ? "reading …" : found.length === all ? plural(all, "Service") : `${count(found.length)} of ${plural(all, "Service")}`;
  draw();
}

function draw() {
  inner.style.height = `${found.length * HEIGHT}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - AROUND);
  const last = Math.min(found.length, Math.ceil((list.scrollTop + list.clientHeight) / HEIGHT) + AROUND);
  const rows = [];
  for (let index = first; index < last; index++) rows.push(rowOf(found[index], index));
  inner.replaceChildren(...rows);
  list.setAttribute("aria-activedescendant", at >= first && at < last ? `row-${at}` : "");
}

function rowOf(row, index) {
  const [namespace, name] = row.name.split("/");
  const now = known.totals.get(row.name);
  const made = el("div", {
    class: `row${row.name === chosen ? " chosen" : ""}${index === at ? " at" : ""}`, id: `row-${index}`, role: "option",
    "data-at": String(index), "aria-selected": String(row.name === chosen), "aria-posinset": String(index + 1), "aria-setsize": String(found.length),
  },
    el("span", { class: "name", title: row.name }, el("span", { class: "dim" }, `${namespace}/`), el("b", null, name)),
    el("span", { class: "rate" }, now?.fresh ? rate(now.fresh) : ""),
    el("span", { class: "sub" }, row.at[0] ?? row.type, row.at.length > 1 ? ` +${row.at.length - 1}` : ""),
    el("span", { class: "marks" }, marks(row, now)));
  made.style.top = `${index * HEIGHT}px`;
  made.querySelector(".name .dim").style.minWidth = `${Math.min(0.65 * (namespace.length + 1), 5.5)}ch`;  // something of a long one stays
  return made;
}

function marks(row, now) {
  const made = [];
  if (IS.drifted(row)) made.push(el("span", { class: `mark ${tone(row.state)}` }, row.state));
  if (now?.failing) made.push(el("span", { class: "mark bad" }, "failing"));
  if (row.ejected) made.push(el("span", { class: "mark bad" }, `${row.ejected} ejected`));
  if (row.drained) made.push(el("span", { class: "mark warn" }, `${row.drained} drained`));
  made.push(el("span", { class: row.used ? "mark plain" : "mark warn", title: "endpoints in use, of all" }, `${row.used}/${row.endpoints}`));
  return made;
}
