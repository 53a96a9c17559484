// Builds elements from text: nothing here, or in what uses it, ever parses text as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(made, name, value);
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function svg(tag, props, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props ?? {})) made.setAttribute(name, value);
  made.append(...children.filter(Boolean));
  return made;
}

function set(made, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
  else if (name === "class") made.className = value;
  else made.setAttribute(name, value === true ? "" : value);
}

// Replace what an element holds, unless it looks the same: a selection and the place of scrolling stay.
export function fill(place, ...children) {
  const draft = document.createElement(place.tagName);
  draft.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  const text = draft.innerHTML;
  if (place.shown === text && place.childNodes.length) return false;
  place.shown = text;
  place.replaceChildren(...draft.childNodes);
  return true;
}

export const byId = (id) => document.getElementById(id);
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const count = (number) => number.toLocaleString("en-US");
export const percent = (share) => `${Number((share * 100).toPrecision(3))} %`;
export const place = (at) => (at.address.includes(":") ? `[${at.address}]:${at.port}` : `${at.address}:${at.port}`);

export function rate(number) {
  if (!number) return "0/s";
  return number >= 100 ? `${count(Math.round(number))}/s` : `${Number(number.toPrecision(2))}/s`;
}

export function bytes(number) {
  let left = number;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (left < 1000) return `${Number(left.toPrecision(3))} ${unit}`;
    left /= 1000;
  }
  return `${Number(left.toPrecision(4))} TB`;
}

export function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 100) return `${Math.round(seconds)} s ago`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

// A length of time that somebody has chosen: 90 s, 5 min, 3 h.
export function lasting(seconds) {
  for (const [unit, size] of [["h", 3600], ["min", 60]]) if (seconds >= size && seconds % size === 0) return `${seconds / size} ${unit}`;
  return `${seconds} s`;
}

export function took(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(2))} ms` : `${Number(seconds.toPrecision(3))} s`;
}

const TONES = {
  "as planned": "good", answered: "good", running: "good", "does the same": "good", ready: "good",
  drifted: "bad", missing: "bad", "not as planned": "bad", dropped: "bad", rejected: "bad", ended: "bad", died: "bad",
  "not programmed": "warn", "of another version": "warn", unknown: "warn", "not ours": "warn", none: "warn",
};
export const tone = (word) => TONES[word] ?? "plain";
export const badge = (text, kind) => el("span", { class: `badge ${kind ?? tone(text)}` }, text);

export async function ask(path, values) {
  const query = new URLSearchParams(Object.entries(values ?? {}).filter(([, value]) => value)).toString();
  const answer = await fetch(query ? `${path}?${query}` : path, { credentials: "same-origin" });
  const said = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (said.error) throw new Error(said.error);
  return said;
}

export function table(titles, rows, caption) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", null,
      el("caption", { class: "unseen" }, caption),
      el("thead", null, el("tr", null, titles.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", null, rows.map((cells) => el("tr", null, cells.map((cell) => el("td", null, cell)))))));
}

// The text of a rule, which is folded between its words only, and never inside an element such as 10.0.0.1 . tcp . 80.
export function rule(text) {
  const pieces = text.match(/"[^"]*"|\S+( (?:[.:]|goto|jump) ("[^"]*"|\S+))*/g) ?? [];
  return pieces.flatMap((piece, index) => [index ? " " : null, el("span", { class: "whole" }, piece)]);
}

export function code(lines, more) {
  return el("pre", { class: "code", tabindex: "0" },
    lines.map((line) => el("span", { class: `line ${kind(line)}` }, `${line}\n`)),
    more ? el("span", { class: "dim" }, `… ${plural(more, "more line")}\n`) : null);
}

function kind(line) {
  if (line.startsWith("#")) return "note";
  return /^\s*(delete|flush|-D|-X|-F)\b/.test(line) ? "minus" : "";
}
