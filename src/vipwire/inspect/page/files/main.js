// The frame: views by the address after #, what the head says, the keyboard, light and dark.

import { ago, ask, badge, byId, code, count, el, fill, plural, table } from "./words.js";
import { known, listen, when } from "./stream.js";
import * as detail from "./detail.js";
import * as list from "./list.js";
import * as packet from "./packet.js";

const VIEWS = ["services", "explain", "differences", "changes", "problems"];
const REFRESH = 2500;
let view = "services";

function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const [first, ...rest] = decodeURIComponent(path).split("/");
  const service = first === "service" ? rest.join("/") : "";
  const asked = new URLSearchParams(query ?? "");
  view = VIEWS.includes(first) ? first : "services";
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== view;
  for (const link of byId("tabs").children) {
    if (link.hash === `#${view}`) {
      link.setAttribute("aria-current", "page");
      byId("tabs").scrollLeft = link.offsetLeft + link.offsetWidth / 2 - byId("tabs").clientWidth / 2;  // in sight on a narrow screen
    } else link.removeAttribute("aria-current");
  }
  document.title = `${service || view} · vipwire${known.head ? ` on ${known.head.node}` : ""}`;
  document.body.classList.toggle("one", Boolean(service));
  if (asked.has("q")) { byId("search").value = asked.get("q").trim(); history.replaceState(null, "", "#services"); list.refresh(true); }
  if (view === "services") { list.select(service); detail.show(service); }
  if (view === "explain") packet.show(asked);
  if (view === "differences") differences();
  if (view === "changes") changes();
  if (view === "problems") problems();
}

function drawHead() {
  const head = known.head;
  if (!head) return;
  const proxy = known.state?.proxy ?? head.proxy;
  const synced = Object.values(proxy.lastSync ?? {}).filter(Boolean).map((text) => Date.parse(text) / 1000);
  const words = { running: "proxy runs", ended: "proxy ended", died: "proxy died", none: "no proxy runs" }[proxy.state];
  fill(byId("head"),
    el("span", { class: "node" }, el("span", { class: "dim" }, "node "), el("b", null, head.node)), badge(head.mode, "plain"),
    badge([words, synced.length && proxy.state === "running" ? el("span", { class: "since" }, `, synced ${ago(Date.now() / 1000 - Math.max(...synced))}`) : null], proxy.state === "running" ? "good" : "bad"),
    head.families.map((each) => el("a", { href: "#differences", class: "family", title: each.reason ?? "" }, badge(`${each.family} ${each.state}`, undefined), each.observedObjects === null ? null : el("span", { class: "dim objects" }, plural(each.observedObjects, "object")))));
  for (const each of byId("head").querySelectorAll(".family .badge")) each.className = `badge ${head.families.some((family) => `${family.family} ${family.state}` === each.textContent && family.state === "as planned") ? "good" : "bad"}`;
  const number = head.problems.length + Object.keys(proxy.failing ?? {}).length;
  byId("problem-count").textContent = number ? count(number) : "";
}

const EFFECTS = { objects: "Services and endpoints are of that time", proxy: "the kernel's rules are of that time", kernel: "its rules are unknown" };
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

// What does not answer, since when, and what is greyed for it. Times of the server are moved to this machine's clock.
function silences() {
  const now = Date.now() / 1000;
  if (!known.live) return known.lost ? [["view", `view: this page's server is silent since ${clock(known.lost)}: all is shown as it was then`]] : [];
  const state = known.state;
  if (!state) return [];
  const said = state.silent.map(({ part, since, error }) => {
    const kind = part.split(" ")[0];
    return [kind, `${part}: silent since ${clock(Date.parse(since) / 1000 + known.ahead)}: ${error}; ${EFFECTS[kind]}`];
  });
  const late = state.looked && now - known.ahead - state.looked > state.lateAfter;
  if (late && !said.length) said.push(["kernel", `kernel: last read at ${clock(state.looked + known.ahead)}`]);
  return said;
}

function drawSilences() {
  const said = silences();
  byId("live").textContent = !known.live ? "not connected" : said.length ? "incomplete" : "live";
  byId("live").classList.toggle("off", Boolean(said.length) || !known.live);
  byId("trouble").hidden = !said.length;
  if (byId("trouble").textContent !== said.map(([, text]) => text).join("\n")) byId("trouble").textContent = said.map(([, text]) => text).join("\n");
  for (const part of ["view", "objects", "kernel", "proxy"]) document.body.classList.toggle(`silent-${part}`, said.some(([each]) => each === part));
}

function differences() {
  ask("/api/diff").then((said) => fill(byId("differences"), said.families.map((each) => el("section", null,
    el("h2", null, each.family, " ", badge(each.state)),
    each.reason ? el("p", { class: "warn" }, each.reason) : null,
    el("p", { class: "dim" }, each.missing === null ? "" : `${count(each.missing)} missing, ${count(each.different)} different, ${count(each.surplus)} surplus, of ${plural(each.wantedObjects ?? 0, "object")}`),
    each.script.length ? [el("p", null, "A sync would change this", each.tool ? [", as ", el("code", null, each.tool), " takes it:"] : ":"), code(each.script, each.more)]
      : el("p", { class: "empty" }, each.state === "unknown" ? "unknown" : "Nothing would change.")))),
  (error) => fill(byId("differences"), el("p", { class: "empty" }, error.message)));
}

function changes() {
  fill(byId("changes"), detail.changesOf(known.changes, true));
}

function problems() {
  const head = known.head;
  if (!head) return;
  const failing = Object.entries((known.state?.proxy ?? head.proxy).failing ?? {}).map(([resource, error]) => ["source", resource, "", error]);
  const flags = head.proxy.otherFlags?.length ? el("p", { class: "warn" }, `The proxy has ${head.proxy.otherFlags.join(" ")}, this page has not.`) : null;
  const rows = [...failing, ...head.problems.map((each) => [each.kind, each.object, each.field, each.message])];
  fill(byId("problems"), flags, rows.length ? table(["Kind", "Object", "Field", "Problem"], rows, "Problems") : el("p", { class: "empty" }, "None: every object is valid, and every source can be read."));
}

function keyed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && !byId("keys").open) {
    if (byId("search").value) { byId("search").value = ""; list.refresh(true); } else if (view === "services") location.hash = "#services";
  }
  if (event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "/") { event.preventDefault(); location.hash = "#services"; byId("search").focus(); }
  if (event.key === "?") byId("keys").showModal();
  if (event.key === "d") theme();
  if (VIEWS[Number(event.key) - 1]) location.hash = `#${VIEWS[Number(event.key) - 1]}`;
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a browser that keeps nothing */ }
}

try { if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme"); } catch { /* as above */ }
byId("theme").addEventListener("click", theme);
byId("help").addEventListener("click", () => byId("keys").showModal());
addEventListener("hashchange", route);
document.addEventListener("keydown", keyed);
list.begin((name) => { location.hash = `#service/${name}`; });
packet.begin();
when("rows", () => { list.refresh(true); if (view === "services" && !location.hash.startsWith("#service/")) detail.show(""); });
when("head", () => { drawHead(); packet.drawModes(); if (view === "problems") problems(); if (location.hash.startsWith("#service/")) detail.refresh(); });
when("rates", () => { list.refresh(false); if (view !== "services") return; if (location.hash.startsWith("#service/")) detail.rates(); else detail.show(""); });
when("changes", () => { if (view === "changes") changes(); });
when("live", drawSilences);
when("state", () => { drawHead(); drawSilences(); });
setInterval(drawSilences, 1000);
setInterval(() => {
  drawHead();
  if (document.hidden) return;
  if (location.hash.startsWith("#service/")) detail.refresh();
  if (view === "differences") differences();
}, REFRESH);
listen();
route();
