// One Service in full, or the overview of all.

import { ago, ask, badge, byId, bytes, code, count, el, fill, lasting, percent, place, plural, rate, table, took, tone } from "./words.js";
import { known } from "./stream.js";
import { endsOf, flow, picturesOf, stateOf } from "./picture.js";

const place_ = byId("detail");
let name = "";
let asked = 0;
let last = null;

export function show(service) {
  if (name !== service) { place_.scrollTop = 0; last = null; place_.shown = ""; }
  name = service;
  if (!name) return overview();
  refresh();
}

export function refresh() {
  if (!name) return overview();
  const mine = ++asked;
  ask("/api/service", { name }).then(
    (said) => { if (mine === asked) serviceOf(said); },
    (error) => { if (mine === asked) fill(place_, back(), el("p", { class: "empty" }, error.message)); });
}

export const rates = () => flow(place_);

const back = () => el("a", { class: "back", href: "#services" }, "‹ All Services");

function serviceOf(said) {
  const service = said.service;
  // The picture is built anew only if its Service is another: else its lines would start again each time.
  const text = JSON.stringify([known.head?.announced, service.ports.map((port) => [port.frontends, port.endpoints.map(({ counts, open, ...rest }) => rest)])]);
  if (last?.name !== name || last.text !== text || !place_.contains(last.picture)) last = { name, text, picture: el("div", null, picturesOf(service)), rest: el("div") };
  const fresh = last.picture.parentNode !== place_;
  if (fresh) { place_.replaceChildren(back(), el("header", { class: "title" }), last.picture, last.rest); place_.shown = ""; }
  fill(place_.querySelector(".title"), titleOf(service));
  fill(last.rest, endpointsOf(service), rulesOf(said.rules), changesOf(said.changes), explainLink(service));
  rates();
}

function titleOf(service) {
  const states = [...new Set(service.kernel.map((each) => each.state))];
  const words = [service.type];
  if (service.internalTrafficPolicy !== "Cluster") words.push(`internal ${service.internalTrafficPolicy}`);
  if (service.type !== "ClusterIP" && service.externalTrafficPolicy !== "Cluster") words.push(`external ${service.externalTrafficPolicy}`);
  if (service.sessionAffinitySeconds !== null) words.push(`a client stays for ${lasting(service.sessionAffinitySeconds)}`);
  if (service.loadBalancerSourceRanges.length) words.push(`only from ${service.loadBalancerSourceRanges.join(", ")}`);
  for (const front of service.ports.flatMap((port) => port.frontends)) {
    if (front.algorithm && front.algorithm !== "random" && !words.includes(front.algorithm)) words.push(front.algorithm);
  }
  return [
    el("h1", null, el("span", { class: "dim" }, `${service.namespace}/`), service.name),
    el("p", null, words.map((word) => badge(word, "plain")), states.map((state) => badge(state))),
    service.lost.map((each) => el("p", { class: "bad" }, `${each.frontend} is left to ${each.to}, which is older or has it by right`)),
    service.healthCheckNodePort ? el("p", { class: "dim" }, `health check on node port ${service.healthCheckNodePort.port}: ${plural(service.healthCheckNodePort.localEndpoints, "endpoint")} here`) : null,
  ];
}

// Columns that would say nothing are left out: the port of a Service with one, bytes that are not counted.
function endpointsOf(service) {
  const ends = endsOf(service);
  const titles = ["Endpoint", "State", "Share", "Connections", "Node", service.ports.length > 1 ? "Port" : null, ends.some((end) => end.counts?.bytes) ? "Bytes" : null];
  const rows = ends.map((end) => {
    const [word, kind] = stateOf(end);
    const counts = end.counts;
    return [
      el("span", { class: "mono" }, place(end)),
      [badge(word, kind), end.why === word ? null : el("span", { class: "why dim" }, end.why)],
      end.share ? percent(end.share) : "–",
      el("span", { "data-connections": place(end) }, counts?.connections === null || !counts ? "–" : count(counts.connections)),
      (end.node || "–") + (end.local ? " (here)" : ""), end.portName || "–",
      counts?.bytes ? `${bytes(counts.bytes)} in${counts.replyBytes === null ? "" : `, ${bytes(counts.replyBytes)} out`}` : "–",
    ].filter((cell, index) => titles[index]);
  });
  return [el("h2", null, "Endpoints"), rows.length
    ? table(titles.filter(Boolean), rows, `Endpoints of ${service.name}`)
    : el("p", { class: "empty" }, "No EndpointSlice has an endpoint for this Service.")];
}

function rulesOf(rules) {
  return [el("h2", null, "In the kernel"), rules.map((each) => el("section", null,
    el("h3", null, each.family, each.tool ? el("span", { class: "dim" }, ` as ${each.tool} takes it`) : null),
    each.reason ? el("p", { class: "warn" }, each.reason) : null,
    each.drift.length ? [el("p", { class: "bad" }, "A sync would change:"), code(each.drift)] : null,
    each.lines.length ? code(each.lines, each.more) : el("p", { class: "empty" }, "Nothing.")))];
}

export function changesOf(changes, ofAll) {
  const rows = [...changes].reverse().map((each) => [
    el("time", { datetime: new Date(each.when * 1000).toISOString(), title: new Date(each.when * 1000).toLocaleString() }, new Date(each.when * 1000).toLocaleTimeString("en-GB")),
    ofAll ? (each.service ? el("a", { class: "service", href: `#service/${each.service}` }, each.service) : each.services ? plural(each.services, "Service") : "–") : null,
    each.about ? [badge(each.what, ["accepted", "readmitted"].includes(each.what) ? "good" : "bad"), el("span", { class: "why dim" }, each.about)] : each.what,
    [each.joined ? el("span", { class: "good" }, `+${each.joined} `) : null, each.left ? el("span", { class: "bad" }, `−${each.left}`) : null, !each.joined && !each.left ? "–" : null],
    took(each.secondsToKernel), each.about ? "–" : took(each.syncSeconds), each.family || "–",
  ].filter((cell) => cell !== null));
  const titles = ["When", ...(ofAll ? ["Service"] : []), "Change", "Endpoints", "Until in kernel", "Sync", "Family"];
  return [ofAll ? null : el("h2", null, "Changes"), rows.length
    ? table(titles, rows, "Changes")
    : el("p", { class: "empty" }, "None since the proxy started, as far as its state directory tells.")];
}

function explainLink(service) {
  const front = service.ports[0]?.frontends.find((each) => each.address);
  if (!front) return null;
  const query = new URLSearchParams({ to: front.address, port: front.port, protocol: front.protocol });
  return el("p", null, el("a", { class: "button", href: `#explain?${query}` }, "Explain a packet to it"));
}

function overview() {
  if (!known.head) { fill(place_, el("p", { class: "empty", role: "status" }, "Reading the Services …")); return; }
  const rows = [...known.rows.values()];
  if (known.whole && !rows.length) { fill(place_, el("h1", null, "No Services yet"), el("p", null, "Create one with ", el("code", null, "kubectl apply"), ", or beside vipwire up with ", el("code", null, "vipwire expose web --port 80 --to 10.0.0.5:8080"), ". It shows here at once.")); return; }
  const sum = (field) => rows.reduce((total, row) => total + row[field], 0);
  const busy = [...known.totals.entries()].filter(([, now]) => now.fresh || now.tracked).sort((one, other) => other[1].fresh - one[1].fresh || other[1].tracked - one[1].tracked);
  const all = busy.reduce((total, [, now]) => total + now.fresh, 0);
  const failing = busy.reduce((total, [, now]) => total + now.failing, 0);
  const drifted = rows.filter((row) => !["as planned", "-"].includes(row.state)).length;
  const tile = (text, number, kind, query) => el("a", { class: `tile ${kind}`, href: query ? `#services?q=${encodeURIComponent(query)}` : "#services" }, el("b", null, number), el("span", null, text));
  fill(place_,
    el("h1", { class: "unseen" }, "Overview"),
    el("div", { class: "tiles" },
      tile("Services", count(rows.length), "plain", " "),
      tile("endpoints in use", [`${count(sum("used"))} `, el("small", null, `of ${count(sum("endpoints"))}`)], "plain"),
      tile("new connections", rate(all), "plain", "is:busy"),
      tile("unanswered", rate(failing), failing ? "bad" : "plain", "is:failing"),
      tile("not as planned", count(drifted), drifted ? "bad" : "plain", "is:drifted"),
      tile("drained", count(sum("drained")), sum("drained") ? "warn" : "plain", "is:drained"),
      tile("ejected", count(sum("ejected")), sum("ejected") ? "bad" : "plain", "is:ejected")),
    el("h2", null, "Busiest Services"),
    known.top?.obstacle ? el("p", { class: "warn" }, known.top.obstacle) : null,
    known.top?.lostEvents ? el("p", { class: "warn" }, "More happened than could be read: rates are too low.") : null,
    busy.length ? el("ul", { class: "busy" }, busy.slice(0, 12).map(([service, now]) => busyOf(service, now, busy[0][1].fresh))) : el("p", { class: "empty" }, "No connection to a Service in the last ten seconds."),
    refusedOf(known.top?.refusedPerSecond ?? {}));
}

function busyOf(service, now, most) {
  const ends = [...known.rates.entries()].filter(([key, each]) => key.startsWith(`${service} `) && (each.fresh || each.tracked)).sort((one, other) => other[1].fresh - one[1].fresh);
  const total = ends.reduce((sum, [, each]) => sum + (each.fresh || each.tracked / 1e6), 0) || 1;
  const bar = el("span", { class: "stack", "aria-hidden": "true" }, ends.map(([key, each]) => {
    const part = el("i", { title: `${key.split(" ")[1]}: ${rate(each.fresh)}` });
    part.style.flexGrow = String((each.fresh || each.tracked / 1e6) / total);
    return part;
  }));
  bar.style.width = `${Math.max(3, 100 * now.fresh / (most || 1))}%`;
  return el("li", null,
    el("a", { href: `#service/${service}` }, service), el("span", { class: "figure" }, rate(now.fresh)),
    el("span", { class: "dim" }, `${plural(ends.length, "endpoint")} · ${count(now.tracked)} tracked${now.bytes ? ` · ${bytes(now.bytes)}/s` : ""}`),
    now.failing ? badge(`${rate(now.failing)} unanswered`, "bad") : null, el("span", { class: "track" }, bar));
}

function refusedOf(refused) {
  const words = Object.entries(refused);
  return words.length ? [el("h2", null, "Refused packets"), el("p", null, words.map(([reason, number]) => badge(`${rate(number)} ${reason}`, tone("dropped"))))] : null;
}
