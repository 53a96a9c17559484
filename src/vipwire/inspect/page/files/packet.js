// A packet's way: what the plan says, then every rule that it meets, by hook and chain.

import { ask, badge, byId, el, fill, percent, place, rule, tone } from "./words.js";
import { known } from "./stream.js";

let mode = "";
let modes = [];

export function begin() {
  ask("/api/modes").then((said) => { modes = said; drawModes(); }, () => {});
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const values = new FormData(event.target);
    location.hash = `#explain?${new URLSearchParams([...values.entries(), ["mode", mode]].filter(([, value]) => value))}`;
  });
}

export function drawModes() {
  const runs = known.head?.mode ?? "";
  fill(byId("modes"), el("span", { class: "dim" }, "Mode: "), modes.map((each) => el("button", {
    type: "button", class: "choice", "aria-pressed": String((mode || runs) === each.name), title: each.forWhom, "data-mode": each.name,
    onclick: () => { mode = each.name === runs ? "" : each.name; drawModes(); if (byId("to").value) byId("ask").requestSubmit(); },
  }, each.name, each.name === runs ? el("span", { class: "dim" }, " (runs)") : null)));
}

export function show(query) {
  const datalist = byId("names");
  if (datalist.childElementCount !== Math.min(known.rows.size, 500)) datalist.replaceChildren(...[...known.rows.keys()].slice(0, 500).map((name) => el("option", { value: name })));
  drawModes();
  if (!query.get("to")) return;
  for (const field of ["from", "to", "port", "protocol"]) if (query.has(field)) byId(field).value = query.get(field);
  mode = query.get("mode") ?? "";
  drawModes();
  const way = byId("way");
  way.setAttribute("aria-busy", "true");
  ask("/api/explain", { from: query.get("from"), to: destination(query), mode }).then(
    (said) => fill(way, wayOf(said)),
    (error) => fill(way, el("p", { class: "card verdict warn" }, error.message)),
  ).finally(() => way.setAttribute("aria-busy", "false"));
}

function destination(query) {
  const [to, port] = [query.get("to").trim(), (query.get("port") ?? "").trim()];
  const bare = to.includes(":") && !to.startsWith("[") && /^[0-9a-f:.]+$/i.test(to) && to.split(":").length > 2 ? `[${to}]` : to;
  return `${bare}${port && !/\]:\d+$|^[^:]*:\w+$/.test(bare) ? `:${port}` : ""}/${query.get("protocol") || "tcp"}`;
}

function wayOf(said) {
  const kernel = said.kernel;
  const agrees = said.supposed
    ? el("p", { class: "dim" }, `As ${said.mode} mode would do it: by the rules that it would write, which are not in the kernel.`)
    : el("p", null, "The kernel ", kernel.agrees === true ? badge("does the same", "good") : kernel.agrees === null ? [badge(kernel.state, "warn"), ` ${kernel.difference}`] : [badge("does otherwise", "bad"), ` ${kernel.difference}`]);
  return [
    el("div", { class: `card verdict ${tone(said.outcome)}` },
      el("h2", null, said.packet.from, el("span", { class: "dim" }, said.packet.fromThisNode ? " (this node)" : said.packet.fromPod ? " (a Pod)" : ""), " → ", `${said.packet.to}/${said.packet.protocol} `, badge(said.outcome)),
      el("ul", null, said.why.map((why) => el("li", null, why))), agrees,
      kernel.remembered ? el("p", null, `Session affinity holds this client at ${kernel.remembered.endpoint} for ${kernel.remembered.seconds} s more.`) : null),
    kernel.path.length ? el("ol", { class: "hooks" }, hooksOf(kernel.path).map(hookOf)) : el("p", { class: "empty" }, "No rule is on its way."),
    endsOf(said),
  ];
}

function hooksOf(path) {
  const hooks = [];
  for (const step of path) {
    const cut = step.object.indexOf(": ");
    const element = cut < 0 && / of /.test(step.object) && hooks.length;
    const hook = cut > 0 ? step.object.slice(0, cut) : element ? hooks.at(-1).name : step.object;
    const object = cut > 0 ? step.object.slice(cut + 2) : step.object;
    if (!hooks.length || hooks.at(-1).name !== hook) hooks.push({ name: hook, chains: [] });
    const chains = hooks.at(-1).chains;
    if (element && chains.length) chains.at(-1).steps.push({ ...step, element: object });
    else if (chains.length && chains.at(-1).name === object) chains.at(-1).steps.push(step);
    else chains.push({ name: object, steps: [step] });
  }
  return hooks;
}

function hookOf(hook) {
  return el("li", { class: "hook" }, hook.name ? el("h3", null, hook.name) : null,
    el("ol", null, hook.chains.map((chain) => el("li", { class: "chain" }, el("h4", null, chain.name), el("ol", null, chain.steps.map(stepOf))))));
}

function stepOf(step) {
  return el("li", { class: `step ${step.state === "as planned" ? "" : tone(step.state)} ${step.element ? "element" : ""}` },
    el("code", null, step.element ? el("span", { class: "dim" }, `${step.element}: `) : null, rule(step.text)),
    el("span", { class: "effect" }, step.effect, step.state === "as planned" ? null : badge(step.state)));
}

function endsOf(said) {
  if (!said.endpoints.length) return said.outcome === "answered" ? null : el("p", { class: `card end-of-way ${tone(said.outcome)}` }, `The packet is ${said.outcome}.`);
  return el("section", { class: "targets" }, el("h3", null, "Endpoints that can answer"),
    el("ul", null, said.endpoints.slice(0, 100).map((end) => {
      const bar = el("span", { class: "bar" });
      bar.style.setProperty("--share", end.share);
      return el("li", { class: "card end good" }, el("span", { class: "mono" }, place(end)), el("span", { class: "dim" }, end.local ? "here" : "elsewhere"),
        el("span", { class: "figures" }, el("b", null, percent(end.share)), el("span", { class: "dim" }, end.sees === null ? "sees an address of this node" : `sees ${end.sees}${end.masqueraded ? " (this node)" : " (the client)"}`)), bar);
    })),
    said.drained.map((end) => el("p", { class: "warn" }, `${place(end)}: ${end.why}`)),
    said.ejected.map((end) => el("p", { class: "bad" }, `${place(end)} is ejected until ${end.until}${end.used ? ", used all the same" : ""}`)));
}
