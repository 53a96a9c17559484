// What the server has told so far, and who wants to know when it changes.

export const known = { rows: new Map(), head: null, rates: new Map(), totals: new Map(), changes: [], top: null, whole: false, state: null, live: false, lost: 0, since: 0 };
const wanting = new Map();

export function when(word, action) {
  wanting.set(word, [...(wanting.get(word) ?? []), action]);
}

function tell(word) {
  for (const action of wanting.get(word) ?? []) action();
}

const SILENT = 12000;
let heard = 0;

// The server gives a sign at least every five seconds. A connection without one, or one that the browser gave up, is opened anew.
export function listen() {
  const source = new EventSource("/api/events");
  const on = (word, take) => source.addEventListener(word, (event) => { live(true); take(JSON.parse(event.data)); tell(word); });
  const watching = setInterval(() => {
    if (source.readyState !== EventSource.CLOSED && performance.now() - heard < SILENT) return;
    live(false);
    clearInterval(watching);
    source.close();
    listen();
  }, 2000);
  heard = performance.now();
  on("rows", takeRows);
  on("head", (document) => { known.head = document; });
  on("rates", takeRates);
  on("changes", (document) => { known.changes = document; });
  on("state", (document) => { known.state = document; known.ahead = Date.now() / 1000 - document.now; });
  on("beat", () => {});
  source.onopen = () => live(true);
  source.onerror = () => live(false);
}

function live(now) {
  if (now) { heard = performance.now(); known.since = Date.now() / 1000; }
  if (now === known.live) return;
  known.live = now;
  known.lost = now ? 0 : known.since;
  tell("live");
}

function takeRows(document) {
  if (document.anew) { known.rows.clear(); known.whole = false; }
  for (const name of document.gone) known.rows.delete(name);
  for (const row of document.changed) {
    row.words = [row.name, row.type, ...row.at, ...row.to].join(" ").toLowerCase();
    known.rows.set(row.name, row);
  }
  if (document.last) known.whole = true;
}

function takeRates(document) {
  known.top = document;
  known.rates = new Map();
  known.totals = new Map();
  for (const row of document.rows) {
    const service = row.service.split(":")[0];
    const fresh = Math.max(row.newPerSecond, row.countedPerSecond ?? 0);
    const one = { fresh, failing: row.unansweredPerSecond, tracked: row.tracked, bytes: (row.bytesPerSecond ?? 0) + (row.replyBytesPerSecond ?? 0) };
    add(known.totals, service, one);
    add(known.rates, `${service} ${row.endpoint}`, one);
  }
}

function add(map, key, one) {
  const sum = map.get(key) ?? { fresh: 0, failing: 0, tracked: 0, bytes: 0 };
  for (const name of Object.keys(sum)) sum[name] += one[name];
  map.set(key, sum);
}
