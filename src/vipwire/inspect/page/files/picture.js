// The picture: addresses on the left, the Service in the middle, endpoints on the right, and lines as thick as shares.
// Cards are a list for a reader; the lines are drawn behind them where there is room.

import { count, el, percent, place, plural, rate, svg } from "./words.js";
import { known } from "./stream.js";

const MOST = 40;

let chosen = "";

// One picture for each port and family, of which one is shown.
export function picturesOf(service) {
  const groups = new Map();
  for (const port of service.ports) {
    for (const front of [...port.frontends, ...(port.ranges ?? [])]) {
      const key = [port.name || `${port.port}/${port.protocol}`, front.family].join(" ");
      groups.set(key, [...(groups.get(key) ?? []), { front, port }]);
    }
  }
  if (!groups.size) return [el("p", { class: "card empty" }, "It is served at no address.")];
  const stage = el("div");
  const buttons = [...groups.keys()].map((key) => el("button", { type: "button", class: "choice", onclick: () => draw(key) }, key));
  const draw = (key) => {
    chosen = key;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.textContent === key));
    stage.replaceChildren(pictureOf(service, groups.get(key)));
  };
  draw(groups.has(chosen) ? chosen : groups.keys().next().value);
  return [buttons.length > 1 ? el("div", { class: "groups", role: "group", "aria-label": "Port and family" }, buttons) : null, stage].filter(Boolean);
}

function pictureOf(service, group) {
  const { front, port } = group[0];
  const ends = endsOf(service).filter((end) => end.family === front.family && end.portName === port.name);
  const full = `${service.namespace}/${service.name}`;
  const fronts = group.slice(0, MOST);
  const picture = el("div", { class: "picture" },
    el("ul", { class: "column fronts", "aria-label": "Addresses" }, fronts.map(frontCard)),
    el("div", { class: "column middle" }, el("div", { class: "hub", "data-to": "hub" }, el("b", null, service.name), el("span", { class: "dim" }, service.namespace),
      el("span", { class: "big", "data-rate": full }, ""))),
    el("ul", { class: "column ends", "aria-label": "Endpoints" }, ends.slice(0, MOST).map((end) => endCard(full, end)),
      ends.length > MOST ? el("li", { class: "dim more" }, `… ${plural(ends.length - MOST, "more endpoint")}: see the table`) : null,
      ends.length ? null : el("li", { class: "card bad" }, "no endpoint")));
  picture.prepend(svg("svg", { class: "lines", "aria-hidden": "true" }));
  new ResizeObserver(() => lines(picture)).observe(picture);
  return picture;
}

function frontText(front) {
  const range = front.lastPort ? `-${front.lastPort}` : "";
  return front.address === null ? `node port ${front.port}${range}/${front.protocol}` : `${place(front)}${range}/${front.protocol}`;
}

function frontCard({ front, port }) {
  const refused = front.action !== "forward";
  return el("li", { class: `card front ${refused ? "bad" : ""}`, "data-front": "" },
    el("span", { class: "mono" }, frontText(front)),
    el("span", { class: "dim" }, front.address === null ? front.family : front.kind.replace("loadbalancer", "load balancer"), port.name ? ` · ${port.name}` : ""),
    announcedWords(front.address),
    front.listening?.length ? el("span", { class: "dim" }, `at ${front.listening.join(", ")}`) : null,
    refused ? el("span", { class: "bad" }, `${front.action}: ${front.reason.split(" ").slice(1).join(" ")}`) : null);
}

function announcedWords(address) {
  const found = known.head?.announced?.[address];
  if (!found) return null;
  const here = found.here ? el("span", { class: "badge good" }, `announced here on ${found.interface}`) : null;
  const other = found.other ? el("span", { class: "badge bad" }, `${found.other} has it${found.here ? ", too" : ""}`) : null;
  return el("span", { class: "marks" }, here, other);
}

// Endpoints with the share that they have at the first address of their family that has any.
export function endsOf(service) {
  const found = new Map();
  for (const port of service.ports) {
    for (const end of port.endpoints) {
      const front = port.frontends.find((each) => each.family === end.family && each.endpoints?.length);
      const share = front?.endpoints.find((each) => each.address === end.address && each.port === end.port)?.share ?? 0;
      found.set(`${port.name} ${place(end)}`, { ...end, share, portName: port.name });
    }
  }
  return [...found.values()].sort((one, other) => other.share - one.share);
}

export function stateOf(end) {
  if (end.ejectedUntil) return ["ejected", "bad"];
  if (end.why.startsWith("drained")) return ["drained", "warn"];
  if (end.terminating) return ["terminating", "warn"];
  if (!end.ready) return ["not ready", "off"];
  return end.share > 0 ? ["ready", "good"] : ["not used here", "off"];
}

function endCard(service, end) {
  const [word, kind] = stateOf(end);
  const bar = el("span", { class: "bar" });
  bar.style.setProperty("--share", end.share);
  return el("li", { class: `card end ${kind}`, "data-end": `${service} ${place(end)}`, "data-share": end.share },
    el("span", { class: "mono" }, place(end)),
    el("span", { class: "dim" }, `${end.node || "no node"}${end.local ? " (here)" : ""}`),
    el("span", { class: "figures" },
      el("b", null, end.share ? percent(end.share) : word),
      el("span", { "data-rate": `${service} ${place(end)}` }, ""),
      word === "ready" || !end.share ? null : el("span", { class: `badge ${kind}` }, word)),
    bar);
}

// Write the rates of now into what is shown, and let the lines flow that carry something.
export function flow(root) {
  if (!root) return;
  for (const each of root.querySelectorAll("[data-rate]")) {
    const now = each.dataset.rate.includes(" ") ? known.rates.get(each.dataset.rate) : known.totals.get(each.dataset.rate);
    const text = now?.fresh || now?.tracked ? `${rate(now.fresh)}${now.tracked ? ` · ${count(now.tracked)} tracked` : ""}` : each.classList.contains("big") ? "no connections" : "";
    if (each.textContent !== text) each.textContent = text;
    each.closest(".end")?.classList.toggle("failing", Boolean(now?.failing));
  }
  for (const line of root.querySelectorAll("path.live")) {
    const now = known.rates.get(line.dataset.of) ?? known.totals.get(line.dataset.of);
    line.classList.toggle("still", !now?.fresh);
    if (now?.fresh) line.style.animationDuration = `${Math.max(0.25, 2.4 / (1 + Math.log2(1 + now.fresh)))}s`;
  }
}

function lines(picture) {
  const field = picture.querySelector("svg.lines");
  const around = picture.getBoundingClientRect();
  const hub = picture.querySelector("[data-to=hub]")?.getBoundingClientRect();
  field.replaceChildren();
  if (!hub || getComputedStyle(field).display === "none") return;
  field.setAttribute("viewBox", `0 0 ${around.width} ${around.height}`);
  const draw = (from, to, width, kind, of) => {
    const half = (to.x - from.x) / 2;
    const path = `M${from.x} ${from.y}C${from.x + half} ${from.y} ${to.x - half} ${to.y} ${to.x} ${to.y}`;
    field.append(svg("path", { d: path, class: `link ${kind}`, "stroke-width": String(width) }));
    if (kind === "good" || kind === "front") {
      const live = svg("path", { d: path, class: "link live still", "stroke-width": String(Math.max(1.5, width / 3)) });
      live.dataset.of = of;
      field.append(live);
    }
  };
  const left = (box) => ({ x: box.left - around.left, y: box.top - around.top + box.height / 2 });
  const right = (box) => ({ x: box.right - around.left, y: box.top - around.top + box.height / 2 });
  const service = picture.querySelector("[data-rate]").dataset.rate;
  for (const each of picture.querySelectorAll("[data-front]")) {
    draw(right(each.getBoundingClientRect()), left(hub), 2, each.classList.contains("bad") ? "bad" : "front", service);
  }
  for (const each of picture.querySelectorAll("[data-end]")) {
    const kind = ["good", "warn", "bad", "off"].find((word) => each.classList.contains(word));
    draw(right(hub), left(each.getBoundingClientRect()), 1.5 + 10 * Number(each.dataset.share), kind, each.dataset.end);
  }
  flow(picture);
}
