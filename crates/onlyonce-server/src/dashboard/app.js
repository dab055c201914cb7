// The dashboard: a client of the admin API.
//
// 1. Text from outside becomes text nodes (`h`, `shown`), never markup.
// 2. What may be done about a record is what the API says in `actions`; there is no rule here.
// 3. One stream per tab (`Stream`), closed while the tab is hidden or paused. With every `figures` event, at least every 5 s, the
//    current view is loaded again, so that changes made by other nodes are seen too. The overview is in the event itself.
// 4. Everything that is kept has a bound: a tab may stay open for days.

const HISTORY_SECONDS = 600;
const RETRY_FIRST_MS = 2_000;
const RETRY_MAX_MS = 15_000;
/** The server sends something at least every 15 s. */
const SILENCE_MAX_MS = 25_000;
const ANSWER_CHARS_MAX = 100_000;
const PAGE = 50;
const TOKEN = "onlyonce-token";

const needsToken = document.documentElement.dataset.token === "required";
const main = document.getElementById("content");
const statusRegion = document.getElementById("status");
const alertRegion = document.getElementById("alert");

// ---------------------------------------------------------------------------------------------------------------------
// Elements

/** An element. Children that are strings become text nodes. */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** Characters that cannot be seen, or that change the order of others. */
const INVISIBLE =
  /(?<![\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f])\u200d|[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/** Text from outside: isolated, so that it does not reorder what stands beside it, with invisible characters marked. */
function shown(text, properties = {}) {
  const value = String(text);
  const pieces = [];
  let from = 0;
  for (const match of value.matchAll(INVISIBLE)) {
    pieces.push(value.slice(from, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    pieces.push(h("span", { class: "mark", "data-code": `U+${code}` }, match[0]));
    from = match.index + match[0].length;
  }
  pieces.push(value.slice(from));
  return h("bdi", properties, pieces.filter((piece) => piece !== ""));
}

const code = (text) => shown(text, { class: "code" });

// ---------------------------------------------------------------------------------------------------------------------
// Time

/** How far the server's clock is ahead of this machine's, in milliseconds. */
let ahead = 0;
const now = () => Date.now() + ahead;

function setClock(at) {
  ahead = Date.parse(at) - Date.now();
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function clockText(millis) {
  const at = new Date(millis);
  const iso = at.toISOString();
  if (iso.slice(0, 10) === new Date(now()).toISOString().slice(0, 10)) return `${iso.slice(11, 19)} UTC`;
  return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]} ${at.getUTCFullYear()}, ${iso.slice(11, 16)} UTC`;
}

/** A moment; the exact one is in `title` and `datetime`. */
function moment(iso) {
  return h("time", { datetime: iso, title: iso }, clockText(Date.parse(iso)));
}

function span(seconds) {
  const rounded = Math.max(0, Math.round(seconds));
  if (rounded < 60) return `${rounded} s`;
  if (rounded < 3600) return `${Math.floor(rounded / 60)} min`;
  if (rounded < 48 * 3600) {
    const minutes = Math.floor((rounded % 3600) / 60);
    return `${Math.floor(rounded / 3600)} h${minutes > 0 && rounded < 10 * 3600 ? ` ${minutes} min` : ""}`;
  }
  return `${Math.floor(rounded / 86_400)} days`;
}

/** How long ago a moment was, or how far ahead it is; kept up to date by `tick`. */
function age(iso, kind = "age") {
  return h("time", { datetime: iso, title: iso, "data-age": kind }, ageText(iso, kind));
}

function ageText(iso, kind) {
  const seconds = (now() - Date.parse(iso)) / 1000;
  if (kind === "ago") return `${span(seconds)} ago`;
  if (kind === "until") return seconds < 0 ? `in ${span(-seconds)}` : "now";
  return span(seconds);
}

function tick() {
  for (const element of document.querySelectorAll("time[data-age]")) {
    const text = ageText(element.getAttribute("datetime"), element.dataset.age);
    if (element.textContent !== text) element.textContent = text;
  }
}

const MOMENT = /\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z/g;

/** A sentence from the server, with its timestamps written for people. */
function sentence(text) {
  const pieces = [];
  let from = 0;
  for (const match of text.matchAll(MOMENT)) {
    pieces.push(shown(text.slice(from, match.index)), moment(match[0]));
    from = match.index + match[0].length;
  }
  return [...pieces, shown(text.slice(from))];
}

// ---------------------------------------------------------------------------------------------------------------------
// The API

/** An answer that is a refusal, in the server's words. */
class Refused extends Error {
  constructor(status, problem) {
    const faults = (problem.faults ?? []).map((fault) => `${fault.path}: ${fault.detail}`);
    super([problem.detail ?? problem.title ?? `The server answered ${status}.`, ...faults].join(" "));
    this.status = status;
    this.code = problem.code ?? "";
    this.problem = problem;
  }
}

let token = sessionStorage.getItem(TOKEN);
/** Who this page acts as: `{who, role}`. */
let you = null;

function headers(more = {}) {
  return token === null ? more : { ...more, authorization: `Bearer ${token}` };
}

/** Sends a request; paths are relative, so that the page works behind a prefix. */
async function send(method, path, { body, more, signal } = {}) {
  const asked = headers({ ...more, ...(body === undefined ? {} : { "content-type": "application/json" }) });
  const init = { method, headers: asked, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) init.body = JSON.stringify(body);
  return fetch(path, init);
}

/** The JSON of an answer. */
async function api(method, path, options) {
  const response = await send(method, path, options);
  const json = await response.json().catch(() => ({}));
  if (response.ok) return json;
  const refused = new Refused(response.status, json);
  if (response.status === 401) askForToken(token === null ? "" : refused.message);
  throw refused;
}

const query = (values) => {
  const set = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return set.length === 0 ? "" : `?${new URLSearchParams(set)}`;
};

const recordPath = (record) => `v1/keys/${encodeURIComponent(record.scope)}/${encodeURIComponent(record.key)}`;
const recordHref = (record) => `#/keys/${encodeURIComponent(record.scope)}/${encodeURIComponent(record.key)}`;
const mayOperate = () => you?.role === "operate";

// ---------------------------------------------------------------------------------------------------------------------
// Messages to the person

function tell(text) {
  alertRegion.replaceChildren();
  statusRegion.replaceChildren(text === "" ? "" : shown(text));
}

function warn(text) {
  statusRegion.replaceChildren();
  alertRegion.replaceChildren(text === "" ? "" : shown(text));
}

// ---------------------------------------------------------------------------------------------------------------------
// Small parts of pages

const SIGNS = { pending: "○", running: "◐", completed: "●", retryable: "↻", unknown: "?", dead: "✕", forgotten: "–" };

function badge(state) {
  const sign = h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[state] ?? "·");
  return h("span", { class: `badge is-${state in SIGNS ? state : "other"}` }, sign, state);
}

const words = (name) => String(name).replaceAll("_", " ").replaceAll("-", " ");
const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
const scopeName = (item) => (item.scope_label ? shown(item.scope_label) : code(String(item.scope ?? "").slice(0, 12)));

function keyLink(item, more = {}) {
  return h("a", { class: "key", href: recordHref(item), "data-focus": `key ${item.scope} ${item.key}`, ...more }, code(item.key));
}

/** `name value` pairs in one line that wraps. */
function facets(...pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", { class: "facets" }, told.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function rows(label, items, row, none) {
  if (items.length === 0) return h("p", { class: "none" }, none);
  return h("ul", { class: "rows", role: "list", "aria-label": label }, items.map((item) => h("li", {}, row(item))));
}

function region(title, properties, ...children) {
  const id = `region-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  const heading = h("h2", { id }, title);
  return h("section", { ...properties, "aria-labelledby": id }, heading, ...children);
}

function field(label, control, hint) {
  const described = hint === undefined ? null : h("span", { class: "hint", id: `${control.id}-hint` }, hint);
  if (described !== null) control.setAttribute("aria-describedby", described.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, described);
}

function choice(id, options, chosen, onchange) {
  const all = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { id, onchange }, all);
}

// ---------------------------------------------------------------------------------------------------------------------
// Plots: SVG of our own. Lines and areas are drawn in the unit square; words stand beside them in HTML and keep their size.

/** Every decision in the order it is stacked, from below, with its colour's number. */
const DECISIONS = ["executed", "replayed", "retried", "accepted", "in_progress", "unknown", "key_reused", "not_stored", "limited", "missing", "invalid", "scope_missing", "expired", "store_unavailable", "observed"];

const history = [];

function remember(figures) {
  const at = Date.parse(figures.at);
  history.push({ at, decisions: figures.decisions_per_minute ?? {}, ...figures.added_latency_seconds });
  while (history.length > 0 && (history[0].at < at - HISTORY_SECONDS * 1000 || history.length > HISTORY_SECONDS)) history.shift();
}

/** Points of the last minutes as runs without a gap; a hidden tab leaves gaps. */
function runs(points) {
  const all = [];
  for (const point of points) {
    const last = all.at(-1)?.at(-1);
    if (last !== undefined && point.at - last.at <= 15_000) all.at(-1).push(point);
    else all.push([point]);
  }
  return all;
}

/** How many minutes the plots show: as many as there are figures for, up to ten. */
function minutes() {
  const seen = history.length === 0 ? 0 : (history.at(-1).at - history[0].at) / 60_000;
  return [1, 2, 5, 10].find((span) => seen <= span) ?? 10;
}

const place = (at, until) => (1000 * (1 - (until - at) / (minutes() * 60_000))).toFixed(1);
const height = (value, top) => (200 - (190 * value) / top).toFixed(1);

function frame(label, top, unit, ...shapes) {
  const grid = [0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: 1000, y1: height(top * part, top), y2: height(top * part, top) }));
  const base = svg("line", { class: "base", x1: 0, x2: 1000, y1: 200, y2: 200 });
  const drawing = svg("svg", { viewBox: "0 0 1000 200", preserveAspectRatio: "none", role: "img", "aria-label": label, focusable: "false" }, ...grid, ...shapes, base);
  return h("div", { class: "plot" },
    h("span", { class: "top", "aria-hidden": "true" }, unit(top)),
    drawing,
    h("span", { class: "ends", "aria-hidden": "true" }, h("span", {}, `${minutes()} min ago`), h("span", {}, "now")));
}

/** The next round number. */
function roundUp(value, least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, least)));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value - 1e-12) ?? least;
}

function trafficPlot(current) {
  const until = history.at(-1)?.at ?? now();
  const used = DECISIONS.filter((name) => history.some((point) => (point.decisions[name] ?? 0) > 0));
  const total = (point) => used.reduce((sum, name) => sum + (point.decisions[name] ?? 0), 0);
  const top = roundUp(Math.max(...history.map(total), 1), 10);
  const shapes = runs(history).flatMap((run) => {
    const below = run.map(() => 0);
    return used.map((name) => {
      const lower = run.map((point, at) => [place(point.at, until), height(below[at], top)]);
      run.forEach((point, at) => { below[at] += point.decisions[name] ?? 0; });
      const upper = run.map((point, at) => [place(point.at, until), height(below[at], top)]);
      const points = [...upper, ...lower.reverse()].map((pair) => pair.join(",")).join(" ");
      return svg("polygon", { class: `area colour-${DECISIONS.indexOf(name)}`, points });
    });
  });
  const said = DECISIONS.filter((name) => (current[name] ?? 0) > 0).map((name) => `${words(name)} ${current[name]}`);
  const label = `Requests by decision. In the last minute: ${said.length === 0 ? "none" : said.join(", ")}.`;
  const listed = DECISIONS.filter((name) => used.includes(name) || (current[name] ?? 0) > 0);
  return [
    frame(label, top, (value) => `${number(value)} a minute`, ...shapes),
    listed.length === 0 ? h("p", { class: "none" }, "No request with a key in the last minutes.") : legend(listed.toReversed().map((name) => [DECISIONS.indexOf(name), words(name), number(current[name] ?? 0)])),
  ];
}

function legend(entries) {
  return h("ul", { class: "legend", role: "list" }, entries.map(([colour, name, value]) =>
    h("li", {}, h("span", { class: `swatch colour-${colour}`, "aria-hidden": "true" }), h("span", {}, name), h("strong", {}, value))));
}

function latency(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const millis = seconds * 1000;
  return millis >= 1000 ? `${seconds.toFixed(2)} s` : `${millis >= 100 ? millis.toFixed(0) : millis >= 1 ? millis.toFixed(1) : millis.toFixed(2)} ms`;
}

function latencyPlot(current) {
  const until = history.at(-1)?.at ?? now();
  const top = roundUp(Math.max(...history.map((point) => point.p99 ?? 0), 0.0001), 0.0001);
  const line = (name) => runs(history.filter((point) => typeof point[name] === "number")).map((run) => {
    const points = run.map((point) => `${place(point.at, until)},${height(point[name], top)}`).join(" ");
    return svg("polyline", { class: `line ${name}`, points });
  });
  const label = `Added latency. In the last minute: half of the requests below ${latency(current.p50)}, 99 of 100 below ${latency(current.p99)}.`;
  return [
    frame(label, top, latency, ...line("p99"), ...line("p50")),
    legend([["p50", "half of the requests below", latency(current.p50)], ["p99", "99 of 100 below", latency(current.p99)]]),
  ];
}

// ---------------------------------------------------------------------------------------------------------------------
// Overview

let overview = null;

function takeOverview(figures) {
  setClock(figures.at);
  overview = figures;
  remember(figures);
  if (figures.you !== undefined) you = figures.you;
  // While the store does not answer there are no counts, and the last ones stay.
  if (figures.records !== null) {
    const unknown = figures.records.unknown ?? 0;
    const dead = (figures.dead_letters.keys ?? 0) + (figures.dead_letters.messages ?? 0);
    document.getElementById("unknown-count").textContent = unknown > 0 ? number(unknown) : "";
    document.getElementById("dead-count").textContent = dead > 0 ? number(dead) : "";
  }
  const foot = [`Node ${figures.node}`, `version ${figures.version}`, you === null ? "" : `you are ${you.who}, role ${you.role}`, "times are UTC"];
  document.getElementById("foot").replaceChildren(shown(foot.filter((part) => part !== "").join(" · ")));
}

class Overview {
  title = "Overview";
  frame = () => [];
  load = async (signal) => takeOverview(await api("GET", "v1/overview", { signal }));
  figures = () => overview;

  body() {
    const figures = overview;
    return [
      region("Needs you", { class: "needs" }, needs(figures)),
      h("div", { class: "columns" },
        region("Traffic", { class: "card" }, h("p", { class: "hint" }, "Requests a minute, by decision"), trafficPlot(figures.decisions_per_minute ?? {})),
        region("Added latency", { class: "card" }, h("p", { class: "hint" }, "What Onlyonce adds to the work itself"), latencyPlot(figures.added_latency_seconds ?? {}))),
      figures.ledger ? ledger(figures.ledger) : null,
      records(figures),
      h("div", { class: "columns" }, workers(figures), node(figures)),
    ];
  }
}

function needs(figures) {
  const items = [...storeNeeds(figures.store), ...(figures.needs_you ?? []).map((need) => needed(need, figures))];
  if (items.length === 0) return h("p", { class: "calm" }, h("span", { class: "tick", "aria-hidden": "true" }, "✓"), "Nothing is stuck.");
  return h("ul", { class: "stuck", role: "list" }, items);
}

function storeNeeds(store) {
  const detail = store?.detail === undefined ? "" : `: ${store.detail}`;
  const refused = "Requests with a key are refused until it answers. Look at the database, and at GET /readyz.";
  switch (store?.state) {
    case undefined:
    case "ok": return [];
    case "slow": return [need("is-bad", ["The store is slow."], "Requests with a key wait for it. Look at the database, its disk and the network to it.")];
    case "stalled": return [need("is-bad", ["The store does not answer", shown(detail), "."], refused)];
    default: return [need("is-bad", ["The store has failed", shown(detail), "."], refused)];
  }
}

function need(kind, title, todo, ...more) {
  return h("li", { class: `need ${kind}` }, h("p", { class: "need-title" }, h("span", {}, title)), ...more, h("p", { class: "todo" }, todo));
}

function needed(item, figures) {
  const more = item.is_more ? "at least " : "";
  switch (item.what) {
    case "unknown": return unknownNeed(item, figures.oldest_unknown);
    case "dead_letter":
      return need("is-bad", [h("a", { href: "#/dead" }, `${more}${plural(item.count, "dead letter", "dead letters")}`), ", the oldest for ", age(item.since)], "The probe gave no verdict and is not called any more. Find out what happened, then give a verdict.");
    case "dead_message":
      return need("is-bad", [h("a", { href: "#/dead" }, plural(item.count, "message", "messages")), item.count === 1 ? " was given up " : " were given up, the first ", age(item.since, "ago")], "Fix the destination, then redrive or discard.");
    case "contradiction":
      return need("is-bad", [`${more}${plural(item.count, "contradiction", "contradictions")} in the last day`], "Two sources disagree about what became of a request. The record stays as it was settled: look at its time line, and correct the effect by hand.",
        h("ul", { class: "inline", role: "list" }, (item.records ?? []).filter((record) => record.scope && record.key).map((record) => h("li", {}, keyLink(record), " from ", shown(record.source)))));
    case "probe_failing":
      return need("is-bad", ["The probe of ", code(item.route ?? ""), " has been failing since ", moment(item.since)], "Its unknown outcomes stay open until it answers, or a person decides.", h("p", { class: "detail" }, shown(item.detail ?? "")));
    default:
      return need("is-bad", [shown(words(item.what)), ` (${number(item.count)}) since `, moment(item.since)], "See the documentation.");
  }
}

function unknownNeed(item, oldest) {
  const todo = "Find out whether it happened, then give a verdict. Until then retries are refused and nothing runs.";
  if (!oldest) return need("is-unknown", [h("a", { href: "#/unknown" }, plural(item.count, "unknown outcome", "unknown outcomes")), ", the oldest for ", age(item.since)], todo);
  const others = item.count - 1;
  return h("li", { class: "need is-unknown" },
    h("p", { class: "need-title" }, keyLink(oldest), h("span", { class: "age" }, "unknown for ", age(item.since))),
    facets(["route", code(oldest.route ?? "–")], ["scope", scopeName(oldest)], ["why", shown(words(oldest.reason ?? "–"))],
      ["more", others > 0 ? h("a", { href: "#/unknown" }, plural(others, "more unknown outcome", "more unknown outcomes")) : null]),
    h("p", { class: "todo" }, todo));
}

function records(figures) {
  const counts = figures.records ?? {};
  const states = ["completed", "running", "pending", "retryable", "unknown"];
  return region("Records", { class: "card" }, h("dl", { class: "tiles" }, states.map((state) =>
    h("div", { class: "tile" }, h("dt", {}, badge(state)), h("dd", {}, h("a", { href: `#/keys?state=${state}`, "aria-label": `${number(counts[state])} ${state}` }, number(counts[state])))))));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function workers(figures) {
  const rounds = Object.entries(figures.workers ?? {});
  return region("Workers", { class: "card" }, rounds.length === 0 ? h("p", { class: "none" }, "No worker has run yet.")
    : h("dl", { class: "facts" }, rounds.map(([name, round]) => pair(capital(words(name)), ["ran ", age(round.ran_at, "ago"), `, took ${latency(round.took_seconds)}`]))));
}

function node(figures) {
  const store = figures.store ?? {};
  const busiest = figures.busiest ?? [];
  return region("Node", { class: "card" },
    h("dl", { class: "facts" },
      pair("Name", shown(figures.node)),
      pair("Store", [shown(store.state ?? "–"), store.millis === undefined ? null : `, ${store.millis} ms`]),
      pair("Oldest message due", figures.oldest_message_seconds === null ? null : `for ${span(figures.oldest_message_seconds)}`),
      pair("Oldest accepted work", figures.oldest_pending_seconds === null ? null : `for ${span(figures.oldest_pending_seconds)}`)),
    busiest.length === 0 ? null : h("h3", {}, "Most retries a minute"),
    busiest.length === 0 ? null : h("dl", { class: "facts" }, busiest.slice(0, 5).map((busy) => pair(scopeName(busy), number(busy.duplicates_per_minute)))));
}

function pair(name, value) {
  if (value === null || value === undefined) return null;
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

function ledger({ count, last }) {
  const row = (charge) => h("tr", {}, h("td", {}, number(charge.payment)), h("td", {}, shown(charge.order)), h("td", {}, shown(charge.card)), h("td", { class: "amount" }, number(charge.amount)));
  return region("Ledger of the sample service", { class: "card" },
    h("p", { class: "hint" }, `The bank's own book: cards were really charged ${plural(count, "time", "times")}. Retries add nothing to it.`),
    count === 0 ? h("p", { class: "none" }, "Nothing was charged yet. Run one of the commands that the terminal shows.")
      : h("table", {}, h("thead", {}, h("tr", {}, ["Payment", "Order", "Card"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col", class: "amount" }, "Amount"))), h("tbody", {}, last.map(row))));
}

// ---------------------------------------------------------------------------------------------------------------------
// Lists

/** A list with filters and pages. Pages that were added are loaded anew with the first. */
class List {
  items = [];
  next = null;
  pages = 1;

  async load(signal) {
    let items = [];
    let cursor = null;
    for (let page = 0; page < this.pages; page += 1) {
      const answer = await api("GET", this.path(cursor), { signal });
      items = [...items, ...answer.items];
      cursor = answer.next;
      if (cursor === null) break;
    }
    this.items = items;
    this.next = cursor;
  }

  figures = () => [this.items, this.next !== null];

  more() {
    if (this.next === null) return null;
    const onclick = () => { this.pages += 1; refresh(); };
    return h("p", { class: "more" }, h("button", { type: "button", "data-focus": "more", onclick }, "Show more"));
  }
}

class Unknown extends List {
  title = "Unknown outcomes";
  filter = "";
  path = (cursor) => `v1/keys${query({ state: "unknown", q: this.filter, limit: PAGE, cursor })}`;

  frame() {
    const box = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false", oninput: later(() => { this.filter = box.value.trim(); this.pages = 1; refresh(); }) });
    return [
      h("p", { class: "lead" }, "Nobody knows whether these requests ran. Retries are refused until a probe, a webhook or you can tell. The oldest come first."),
      h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, field("Filter", box, "A key or its beginning, a scope or its label")),
    ];
  }

  body() {
    return [rows("Unknown outcomes", this.items, unknownRow, this.filter === "" ? "Nothing is unknown." : "No unknown outcome matches."), this.more()];
  }
}

function unknownRow(item) {
  const next = item.dead_letter ? "dead letter: a person has to decide" : item.ask_at ? age(item.ask_at, "until") : "no probe: a webhook or a person has to settle it";
  return [
    h("p", { class: "row-title" }, keyLink(item), h("span", { class: "age" }, age(item.since ?? item.updated_at))),
    facets(["why", item.reason ? shown(words(item.reason)) : null], ["state", item.state === "unknown" ? null : words(item.state)],
      ["route", code(item.route ?? "–")], ["scope", scopeName(item)], ["next question", next]),
  ];
}

class Keys extends List {
  title = "Keys";

  constructor(parameters) {
    super();
    this.q = parameters.get("q") ?? "";
    this.state = parameters.get("state") ?? "";
  }

  path = (cursor) => `v1/keys${query({ q: this.q, state: this.state, limit: PAGE, cursor })}`;

  frame() {
    const changed = () => {
      this.q = box.value.trim();
      this.state = state.value;
      this.pages = 1;
      window.history.replaceState(null, "", `#/keys${query({ q: this.q, state: this.state })}`);
      refresh();
    };
    const box = h("input", { type: "search", id: "search", value: this.q, autocomplete: "off", spellcheck: "false", oninput: later(changed) });
    const states = [["", "any"], ...["completed", "running", "pending", "retryable", "unknown"].map((name) => [name, name])];
    const state = choice("state", states, this.state, changed);
    const submitted = (event) => { event.preventDefault(); changed(); };
    return [h("form", { class: "filters", role: "search", onsubmit: submitted },
      field("Search", box, "A key or its beginning, an Onlyonce-Token, a scope or its label"), field("State", state))];
  }

  body() {
    return [rows("Keys", this.items, keyRow, this.q === "" && this.state === "" ? "There are no records yet." : "No record matches."), this.more()];
  }
}

function keyRow(item) {
  return [
    h("p", { class: "row-title" }, keyLink(item), badge(item.state)),
    facets(["answer", item.status === null ? null : String(item.status)], ["attempt", item.attempt > 1 ? number(item.attempt) : null],
      ["route", code(item.route ?? "–")], ["scope", scopeName(item)], ["created", age(item.created_at, "ago")],
      ["unreadable", item.unreadable ? shown(item.unreadable) : null]),
  ];
}

class Log extends List {
  title = "Audit log";
  action = "";
  key = "";
  path = (cursor) => `v1/audit${query({ action: this.action, key: this.key, limit: PAGE, cursor })}`;

  frame() {
    const changed = () => { this.action = action.value; this.key = key.value.trim(); this.pages = 1; refresh(); };
    const actions = ["verdict", "forget", "purge", "redrive", "discard", "read_response", "read_payload", "reload", "contradiction"];
    const action = choice("action", [["", "any"], ...actions.map((name) => [name, words(name)])], "", changed);
    const key = h("input", { type: "search", id: "key", autocomplete: "off", spellcheck: "false", oninput: later(changed) });
    return [
      h("p", { class: "lead" }, "Who changed what, when and why. Each entry was written together with its change."),
      h("form", { class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); changed(); } }, field("Key", key), field("Action", action)),
    ];
  }

  body() {
    return [rows("Audit log", this.items, logRow, this.action === "" && this.key === "" ? "Nothing was changed yet." : "No entry matches."), this.more()];
  }
}

function logRow(entry) {
  const { target } = entry;
  const about = target.key !== null && target.scope !== null ? keyLink(target, { "data-focus": `log ${entry.id}` }) : target.id === null ? null : code(target.id.slice(0, 16));
  const change = [entry.before?.state, entry.after?.state].filter((state) => typeof state === "string");
  const result = entry.result === "refused" ? h("strong", { class: "refused" }, "refused", entry.code ? `: ${words(entry.code)}` : "") : words(entry.result);
  return [
    h("p", { class: "row-title" }, h("span", {}, h("strong", {}, shown(entry.who)), " · ", words(entry.action), entry.after?.verdict ? ` ${words(entry.after.verdict)}` : "", about === null ? null : [" · ", about]), h("span", { class: "age" }, moment(entry.at))),
    entry.reason ? h("p", { class: "reason" }, shown(entry.reason)) : null,
    facets(["result", result], ["change", change.length === 2 ? change.join(" → ") : null], ["forced", entry.forced ? "yes" : null],
      ["as", entry.as ? shown(entry.as) : null], ["scope", target.scope === null ? null : scopeName(target)], ["from", entry.from ? `${entry.from} by ${entry.via}` : entry.via]),
  ];
}

class Dead {
  title = "Dead letters";
  keys = new List();
  messages = new List();

  constructor() {
    this.keys.path = (cursor) => `v1/keys${query({ dead_letter: "true", limit: PAGE, cursor })}`;
    this.messages.path = (cursor) => `v1/outbox${query({ state: "dead", limit: PAGE, cursor })}`;
  }

  frame = () => [h("p", { class: "lead" }, "Given up, and kept until somebody decides. Nothing here is deleted by age.")];
  load = async (signal) => { await Promise.all([this.keys.load(signal), this.messages.load(signal)]); };
  figures = () => [this.keys.figures(), this.messages.figures()];

  body() {
    return [
      region("Records", {}, h("p", { class: "hint" }, "Outcomes that the probe could not determine. A verdict settles one; “Ask again” calls the probe again."),
        rows("Records", this.keys.items, unknownRow, "No record is a dead letter."), this.keys.more()),
      region("Messages", {}, h("p", { class: "hint" }, "Side effects that could not be delivered."),
        rows("Messages", this.messages.items, messageRow, "No message is a dead letter."), this.messages.more()),
    ];
  }
}

function messageRow(message) {
  const last = message.errors.at(-1);
  const buttons = !mayOperate() ? null : h("div", { class: "buttons" },
    h("button", { type: "button", "data-focus": `redrive ${message.id}`, "aria-describedby": `message-${message.id}`, onclick: (event) => redrive(event.currentTarget, message) }, "Redrive"),
    h("button", { type: "button", class: "quiet", "data-focus": `discard ${message.id}`, "aria-describedby": `message-${message.id}`, onclick: (event) => discard(event.currentTarget, message) }, "Discard"));
  return [
    h("p", { class: "row-title" }, h("span", { id: `message-${message.id}` }, `Message ${message.id} to `, h("strong", {}, shown(message.destination))), h("span", { class: "age" }, age(message.created_at, "ago"))),
    last ? h("p", { class: "reason" }, shown(last.error)) : null,
    facets(["key", code(message.key)], ["group", message.group ? shown(message.group) : null], ["deliveries", number(message.deliveries)], ["last tried", last ? moment(last.at) : null]),
    buttons,
  ];
}

const redrive = (opener, message) => dialog(opener, {
  title: `Redrive message ${message.id}`,
  says: "It is delivered again at once, with the same key. The receiver may have seen it before.",
  confirm: ({ reason }) => api("POST", `v1/outbox/${message.id}/redrive`, { body: { reason } }),
  told: () => `Message ${message.id} was redriven.`,
});

const discard = (opener, message) => dialog(opener, {
  title: `Discard message ${message.id}`,
  says: "It is deleted and will not be delivered.",
  confirm: ({ reason }) => api("DELETE", `v1/outbox/${message.id}${query({ reason })}`),
  told: () => `Message ${message.id} was discarded.`,
});

// ---------------------------------------------------------------------------------------------------------------------
// One record

class Key {
  record = null;
  answer = null;

  constructor(scope, key) {
    this.scope = scope;
    this.key = key;
    this.title = key;
  }

  frame = () => [];
  heading = () => code(this.key);
  figures = () => [this.record, this.answer];

  async load(signal) {
    try {
      this.record = await api("GET", recordPath(this), { signal });
    } catch (error) {
      if (error.code !== "record_not_found") throw error;
      this.record = null;
      this.missing = error.message;
    }
  }

  body() {
    const record = this.record;
    if (record === null) return [h("p", { class: "none" }, shown(this.missing ?? "There is no such record.")), h("p", {}, h("a", { href: "#/keys" }, "All keys"))];
    return [
      h("p", { class: "standing" }, badge(record.state), record.dead_letter ? badge("dead") : null, h("span", { class: "why" }, sentence(record.why))),
      record.unreadable ? h("p", { class: "todo" }, shown(record.unreadable)) : null,
      mayOperate() ? verdicts(record) : null,
      h("div", { class: "columns wide-left" },
        h("div", { class: "stack" }, region("What happened", { class: "card" }, timeLine(record)), this.stored(record)),
        region("Facts", { class: "card" }, facts(record))),
    ];
  }

  stored(record) {
    if (record.response === null) return null;
    const { status, bytes, headers: names } = record.response;
    const show = async () => {
      try {
        this.answer = await storedAnswer(record);
        paint();
      } catch (error) {
        warn(error.message);
      }
    };
    const answer = this.answer;
    return region("Stored answer", { class: "card" },
      h("dl", { class: "facts" }, pair("Status", String(status)), pair("Size", plural(bytes, "byte", "bytes")), pair("Headers", names.length === 0 ? "none" : names.join(", "))),
      answer !== null ? [h("pre", { tabindex: "0", "aria-label": "Stored answer" }, answer.headers.map((line) => [shown(line), "\n"]), "\n", shown(answer.body))]
        : mayOperate() && !record.unreadable ? [h("p", {}, h("button", { type: "button", "data-focus": "show", onclick: show }, "Show answer")), h("p", { class: "hint" }, "That you looked is written to the audit log.")] : null);
  }
}

async function storedAnswer(record) {
  const response = await send("GET", `${recordPath(record)}/response`);
  if (response.headers.get("idempotent-replayed") !== "true") {
    const problem = await response.json().catch(() => ({}));
    if (response.status === 401) askForToken(problem.detail ?? "");
    throw new Refused(response.status, problem);
  }
  const text = await response.text();
  const kept = record.response.headers.filter((name) => response.headers.has(name));
  return {
    headers: [`${response.status}`, ...kept.map((name) => `${name}: ${response.headers.get(name)}`)],
    body: text.length > ANSWER_CHARS_MAX ? `${text.slice(0, ANSWER_CHARS_MAX)}… (${number(text.length)} characters)` : text,
  };
}

function facts(record) {
  const at = (iso) => (iso === null || iso === undefined ? null : moment(iso));
  return h("dl", { class: "facts" },
    pair("Route", code(record.route ?? "–")),
    pair("Scope", [record.scope_label ? [shown(record.scope_label), h("br")] : null, code(record.scope)]),
    pair("Effects", record.effects),
    pair("Attempt", number(record.attempt)),
    pair("Created", at(record.created_at)),
    pair("Began", at(record.began_at)),
    pair("Deadline", at(record.deadline_at)),
    pair("Lease lapses", at(record.lapses_at)),
    pair("Unknown since", record.state === "unknown" ? at(record.since) : null),
    pair("“Did not happen” is believed from", record.state === "unknown" || record.state === "running" ? at(record.believed_at) : null),
    pair("Probe asked", record.state === "unknown" ? [plural(record.asked, "time", "times"), record.ask_at ? [", next ", age(record.ask_at, "until")] : null] : null),
    pair("Settled by", record.by),
    pair("Stopped behind phase", record.recovery_point ? shown(record.recovery_point) : null),
    pair("Expires", at(record.expires_at)),
    pair("Fingerprint", code(record.fingerprint)));
}

const EVENTS = { attempt: "Attempt began", lapsed: "Lease lapsed", unknown: "Outcome unknown", probe: "Probe", webhook: "Webhook", verdict: "Verdict", dead_letter: "Dead letter", completed: "Completed", retryable: "May run again", superseded: "Superseded", forced: "Forced" };

function timeLine(record) {
  const entries = record.evidence.map((entry) => h("li", { class: `event is-${entry.what}` },
    h("p", { class: "event-title" }, h("strong", {}, EVENTS[entry.what] ?? words(entry.what)),
      entry.said ? [": ", words(entry.said)] : null, entry.contradicts ? h("strong", { class: "refused" }, " contradicts the record") : null),
    entry.detail ? h("p", { class: "detail" }, sentence(entry.detail)) : null,
    h("p", { class: "hint" }, moment(entry.at), ` · attempt ${entry.attempt} · by `, shown(entry.who ?? entry.source ?? entry.by))));
  const left = record.evidence_left_out > 0 ? h("p", { class: "hint" }, `${plural(record.evidence_left_out, "entry is", "entries are")} left out between the first and the last ones.`) : null;
  return [h("ol", { class: "time-line", role: "list", "aria-label": "Time line" }, entries), left];
}

// ---------------------------------------------------------------------------------------------------------------------
// Verdicts

const ACTIONS = { happened: "Happened", "did-not-happen": "Did not happen", ask: "Ask again", forget: "Forget" };
const FORCEABLE = ["verdict_too_early", "record_running"];

function verdicts(record) {
  const all = record.actions.filter((action) => action.allowed || action.code !== "record_settled");
  if (all.length === 0) return null;
  const early = all.filter((action) => !action.allowed && FORCEABLE.includes(action.code) && (action.action === "happened" || action.action === "did-not-happen"));
  return h("div", { class: "verdicts", role: "group", "aria-label": "Verdict" },
    h("div", { class: "buttons" }, all.map((action) => actionButton(record, action))),
    early.length === 0 ? null : h("details", { "data-focus": "early" }, h("summary", { "data-focus": "early-summary" }, "Settle early"),
      h("p", { class: "hint" }, "Only where you are certain that the attempt cannot take effect any more."),
      h("div", { class: "buttons" }, early.map((action) => h("button", { type: "button", class: "quiet", "data-focus": `early ${action.action}`, onclick: (event) => order(event.currentTarget, record, action.action, true) }, `${ACTIONS[action.action]} (force)`)))));
}

function actionButton(record, action) {
  const name = ACTIONS[action.action] ?? words(action.action);
  const focus = `action ${action.action}`;
  if (action.allowed) {
    const strong = action.action === "happened" || action.action === "did-not-happen";
    return h("button", { type: "button", class: strong ? "strong" : null, "data-focus": focus, onclick: (event) => order(event.currentTarget, record, action.action, false) }, name);
  }
  const id = `not-${action.action}`;
  return h("span", { class: "not-yet" }, h("button", { type: "button", disabled: true, "aria-describedby": id }, name), h("span", { class: "hint", id }, notYet(record, action)));
}

function notYet(record, action) {
  switch (action.code) {
    case "verdict_too_early": return ["from ", moment(action.from)];
    case "record_running": return record.lapses_at ? ["it runs; not before ", moment(record.lapses_at)] : "it runs";
    case "record_unknown": return "give a verdict instead";
    case "nothing_to_ask": return "its route has no probe";
    case "record_undecryptable": return "its encryption key is missing";
    default: return words(action.code ?? "not now");
  }
}

function order(opener, record, action, isEarly) {
  const path = recordPath(record);
  const more = { "if-match": `"${record.revision}"` };
  const judge = (body, force) => api("POST", `${path}/verdict${query({ force: force ? "true" : "" })}`, { body: { ...body, token: record.token }, more });
  const told = (answer) => {
    if (answer.result === "forgotten") return `${record.key}: forgotten. A retry runs the work again.`;
    if (answer.result === "noted") return `${record.key}: noted. The probe is asked now.`;
    return `${record.key}: ${answer.result}, ${answer.before.state} → ${answer.after.state}.`;
  };
  const common = { told, isEarly, gone: [404, 409, 412] };
  switch (action) {
    case "happened": return dialog(opener, { ...common, title: "Happened", says: "Retries get this answer. Nothing runs again.", hasAnswer: true,
      confirm: ({ reason, response, force }) => judge(response === null ? { verdict: "happened", reason, ask: true } : { verdict: "happened", reason, response }, force) });
    case "did-not-happen": return dialog(opener, { ...common, title: "Did not happen", says: "The next retry runs the work again.",
      confirm: ({ reason, force }) => judge({ verdict: "did-not-happen", reason }, force) });
    case "ask": return dialog(opener, { ...common, title: "Ask again", says: "The probe is called at once, and its tries are counted from zero again. Nothing changes until it answers.",
      confirm: ({ reason, force }) => judge({ verdict: "unknown", reason }, force) });
    default: return dialog(opener, { ...common, title: "Forget", says: "The key is as if it had never been used: a retry runs the work again. It takes some seconds until every node knows.",
      confirm: ({ reason }) => api("DELETE", `${path}${query({ reason })}`, { more }) });
  }
}

/** Asks for a reason and what else is needed. The focus stays inside, and returns to the button that opened it. */
function dialog(opener, { title, says, confirm, told, hasAnswer = false, isEarly = false, gone = [404, 409] }) {
  const focus = opener.dataset.focus;
  const reason = h("input", { type: "text", id: "reason", maxlength: "1000", required: true, autocomplete: "off" });
  const status = h("input", { type: "text", inputmode: "numeric", id: "answer-status", value: "200", autocomplete: "off" });
  const media = h("input", { type: "text", id: "answer-type", value: "application/json", autocomplete: "off", spellcheck: "false" });
  const answer = h("textarea", { id: "answer-body", rows: "4", spellcheck: "false" });
  const none = h("input", { type: "checkbox", id: "answer-none" });
  const force = h("input", { type: "checkbox", id: "force" });
  const refusal = h("p", { class: "refusal", role: "alert" });
  const follows = h("p", { class: "says", id: "dialog-says" }, says);
  const accept = h("button", { type: "submit", class: "strong", disabled: true }, "Confirm");
  const cancel = h("button", { type: "button", onclick: () => box.close() }, "Cancel");
  const tick = (control, label) => h("div", { class: "tickbox" }, control, h("label", { for: control.id }, label));
  const form = h("form", { novalidate: true },
    h("h2", { id: "dialog-title" }, title), follows,
    isEarly ? h("p", { class: "todo" }, "It is early: the attempt may still take effect. If it does after you have said otherwise, the work is done twice.") : null,
    field("Reason", reason, "For the audit log"),
    hasAnswer ? h("div", { class: "answer" }, h("div", { class: "pairs" }, field("Status", status), field("Content type", media)), field("Answer", answer, "Left empty, retries get the status without a body"), tick(none, "I do not have the answer")) : null,
    isEarly ? tick(force, "It cannot still happen (force)") : null,
    refusal,
    h("div", { class: "buttons end" }, cancel, accept));
  const box = h("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-says" }, form);

  const changed = () => {
    accept.disabled = reason.value.trim() === "" || (isEarly && !force.checked) || form.ariaBusy === "true";
    for (const control of [status, media, answer]) control.disabled = none.checked;
    if (hasAnswer) follows.textContent = none.checked ? "Retries are told that it is done, without an answer. Nothing runs again. Where the route has a probe, it is asked for the answer first." : says;
  };
  const response = () => {
    if (none.checked) return null;
    const type = media.value.trim();
    return { status: /^\d+$/.test(status.value.trim()) ? Number(status.value.trim()) : status.value, headers: type === "" ? {} : { "content-type": type }, ...(answer.value === "" ? {} : { body: answer.value }) };
  };
  const submitted = async (event) => {
    event.preventDefault();
    if (accept.disabled) return;
    form.ariaBusy = "true";
    refusal.replaceChildren();
    changed();
    try {
      const done = await confirm({ reason: reason.value.trim(), response: hasAnswer ? response() : null, force: force.checked });
      box.close();
      await refresh();
      tell(told(done));
    } catch (error) {
      form.ariaBusy = "false";
      changed();
      if (error instanceof Refused && (error.status === 401 || error.status === 403 || gone.includes(error.status))) {
        box.close();
        await refresh();
        warn(error.message);
      } else {
        refusal.replaceChildren(shown(error instanceof Refused ? error.message : `No connection: ${error.message}. Whether it was done is not known; look at the record before you try again.`));
      }
    }
    refocus(focus);
  };
  const trap = (event) => {
    if (event.key !== "Tab") return;
    const controls = [...form.querySelectorAll("input, textarea, button")].filter((control) => !control.disabled);
    const at = controls.indexOf(document.activeElement);
    const next = controls[(at + (event.shiftKey ? -1 : 1) + controls.length) % controls.length];
    event.preventDefault();
    next.focus();
  };
  form.addEventListener("input", changed);
  form.addEventListener("submit", submitted);
  box.addEventListener("keydown", trap);
  box.addEventListener("close", () => { box.remove(); refocus(focus); });
  document.body.append(box);
  tell("");
  box.showModal();
  reason.focus();
}

const isDialogOpen = () => document.querySelector("dialog[open]") !== null;

/** Puts the focus on the control that was there before, or on the page's heading where it is gone. */
function refocus(focus) {
  if (isDialogOpen()) return;
  const control = focus === undefined ? null : [...main.querySelectorAll("[data-focus]")].find((element) => element.dataset.focus === focus && !element.disabled);
  (control ?? main.querySelector("h1"))?.focus({ preventScroll: true });
}

// ---------------------------------------------------------------------------------------------------------------------
// Views

let view = null;
let bodyElement = null;
let painted = "";
let loading = null;
/** What the server said when the view could not be loaded, until it can be. */
let failure = "";

function viewOf(hash) {
  const [path, parameters = ""] = hash.replace(/^#/, "").split("?");
  let parts;
  try {
    parts = path.split("/").slice(1).map(decodeURIComponent);
  } catch {
    parts = ["?"];
  }
  if (parts[0] === "keys" && parts.length === 3) return new Key(parts[1], parts[2]);
  if (parts.length > 1) return null;
  switch (parts[0] ?? "") {
    case "": return new Overview();
    case "unknown": return new Unknown();
    case "keys": return new Keys(new URLSearchParams(parameters));
    case "dead": return new Dead();
    case "log": return new Log();
    default: return null;
  }
}

const routeOf = () => (location.hash.startsWith("#/") ? location.hash : "#/");

function navigate({ focus = true } = {}) {
  if (needsToken && token === null) return askForToken("");
  for (const open of document.querySelectorAll("dialog[open]")) open.close();
  tell("");
  failure = "";
  view = viewOf(routeOf());
  loading?.abort();
  loading = null;
  painted = "";
  bodyElement = h("div", { class: "body", "aria-busy": "true" }, h("p", { class: "none" }, "Loading…"));
  const heading = h("h1", { tabindex: "-1" }, view === null ? "Not found" : view.heading?.() ?? view.title);
  document.title = `${view === null ? "Not found" : view.title} · Onlyonce`;
  main.replaceChildren(heading, ...(view === null ? [h("p", {}, "There is no such page. ", h("a", { href: "#/" }, "Overview"))] : [...view.frame(), bodyElement]));
  markNavigation();
  if (focus) {
    heading.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  if (view instanceof Overview && overview !== null) paint();
  return view === null ? null : refresh();
}

function markNavigation() {
  const route = routeOf().split("?")[0];
  for (const link of document.querySelectorAll("nav a")) {
    const href = link.getAttribute("href");
    const isHere = href === route || (href !== "#/" && route.startsWith(`${href}/`));
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Loads the current view and shows it as it is now. */
async function refresh(isLive = false) {
  const current = view;
  if (current === null || (needsToken && token === null)) return;
  // A refresh by the stream does not abort a load in progress: on a slow connection no load would ever finish.
  if (isLive && loading !== null) return;
  loading?.abort();
  const own = new AbortController();
  loading = own;
  try {
    await current.load(own.signal);
    if (view !== current || own.signal.aborted) return;
    if (failure !== "" && alertRegion.textContent === failure) warn("");
    failure = "";
    paint(isLive);
  } catch (error) {
    if (own.signal.aborted || view !== current || view === null) return;
    bodyElement.removeAttribute("aria-busy");
    if (error instanceof Refused) {
      if (error.status !== 401 && failure !== error.message) warn(error.message);
      failure = error.status === 401 ? "" : error.message;
      if (painted === "") bodyElement.replaceChildren(h("p", { class: "none" }, "This could not be loaded. It is tried again."));
    } else {
      stream.lose();
    }
  } finally {
    if (loading === own) loading = null;
  }
}

/** Puts the loaded view on the page, unless it is there already. The focus stays where it was. A refresh by the stream
 *  waits while text is selected. */
function paint(isLive = false) {
  const figures = JSON.stringify(view.figures());
  if (figures === painted) return;
  const selection = document.getSelection();
  if (isLive && painted !== "" && selection !== null && !selection.isCollapsed && bodyElement.contains(selection.anchorNode)) return;
  const active = document.activeElement;
  const focus = bodyElement.contains(active) ? active.dataset.focus : undefined;
  const isOpen = bodyElement.querySelector("details[open]") !== null;
  bodyElement.replaceChildren(...view.body().filter((node) => node !== null));
  bodyElement.removeAttribute("aria-busy");
  const details = bodyElement.querySelector("details");
  if (details !== null) details.open = isOpen;
  painted = figures;
  if (focus !== undefined) refocus(focus);
}

/** A function that calls `action` 200 ms after it was last called itself. */
function later(action) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, 200);
  };
}

// ---------------------------------------------------------------------------------------------------------------------
// Signing in

function askForToken(why) {
  token = null;
  you = null;
  overview = null;
  history.length = 0;
  sessionStorage.removeItem(TOKEN);
  stream.close();
  view = null;
  loading?.abort();
  for (const open of document.querySelectorAll("dialog[open]")) open.close();
  document.getElementById("navigation").hidden = true;
  document.getElementById("live").hidden = true;
  document.getElementById("foot").replaceChildren();
  document.title = "Sign in · Onlyonce";
  const box = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const submitted = (event) => {
    event.preventDefault();
    const value = box.value.trim();
    if (value === "") return;
    token = value;
    sessionStorage.setItem(TOKEN, value);
    begin();
  };
  main.replaceChildren(h("form", { class: "sign-in", onsubmit: submitted },
    h("h1", { tabindex: "-1" }, "Sign in"),
    h("p", { class: "lead" }, "The settings of this gateway have tokens for operators. Yours stays in this tab, and is gone when you close it."),
    field("Token", box),
    h("button", { type: "submit", class: "strong" }, "Sign in")));
  if (why === "") tell("");
  else warn(why);
  box.focus();
}

/** Shows the page, once it is known who is there. */
async function begin() {
  tell("");
  try {
    const figures = await api("GET", "v1/overview");
    takeOverview(figures);
  } catch (error) {
    // 401 has asked for a token already. After any other failure the page is shown and loads again later.
    if (error instanceof Refused && error.status === 401) return;
    if (error instanceof Refused) warn(error.message);
  }
  document.getElementById("navigation").hidden = false;
  document.getElementById("live").hidden = false;
  document.getElementById("sign-out").hidden = !needsToken;
  stream.open();
  await navigate({ focus: needsToken });
}

// ---------------------------------------------------------------------------------------------------------------------
// The stream of events

class Stream {
  isPaused = false;
  lostAt = null;
  lastId = null;
  abort = null;

  isWanted = () => !this.isPaused && !document.hidden && (!needsToken || token !== null);

  open() {
    if (this.abort !== null || !this.isWanted()) return this.tell();
    this.abort = new AbortController();
    this.run(this.abort);
  }

  close() {
    this.abort?.abort();
    this.abort = null;
    this.tell();
  }

  async run(own) {
    let pause = RETRY_FIRST_MS;
    while (!own.signal.aborted) {
      try {
        await this.read(own, () => { pause = RETRY_FIRST_MS; });
      } catch (error) {
        if (own.signal.aborted) return;
        if (error instanceof Refused && error.status === 401) return askForToken(error.message);
        if (error instanceof Refused) this.detail = error.message;
      }
      if (own.signal.aborted) return;
      this.lose();
      await new Promise((resolve) => { setTimeout(resolve, pause); });
      pause = Math.min(pause * 2, RETRY_MAX_MS);
    }
  }

  /** Reads one connection to its end. */
  async read(own, connected) {
    // A signal of this connection alone: silence ends the connection, not the stream.
    const once = new AbortController();
    const end = () => once.abort();
    own.signal.addEventListener("abort", end);
    let silence = setTimeout(end, SILENCE_MAX_MS);
    try {
      const response = await send("GET", "v1/events", { signal: once.signal, more: this.lastId === null ? {} : { "last-event-id": this.lastId } });
      if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
      connected();
      this.found();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(end, SILENCE_MAX_MS);
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        blocks.forEach((block) => this.take(block));
      }
    } finally {
      clearTimeout(silence);
      own.signal.removeEventListener("abort", end);
    }
  }

  take(block) {
    if (this.lostAt !== null) this.found();
    const event = { name: "message", data: "" };
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) this.lastId = line.slice(4);
      else if (line.startsWith("event: ")) event.name = line.slice(7);
      else if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    switch (event.name) {
      case "figures": {
        const figures = JSON.parse(event.data);
        takeOverview(figures);
        const isOverview = view instanceof Overview;
        if (isOverview) paint(true);
        // The overview came with the event. It is loaded only after a load that failed, to take back the alert.
        if (view !== null && !isDialogOpen() && (!isOverview || failure !== "")) refresh(true);
        break;
      }
      case "resync":
        this.lastId = null;
        refresh();
        break;
      default:
        // `record` and `change` are followed by figures within a second.
        break;
    }
  }

  lose() {
    this.lostAt ??= now();
    this.tell();
  }

  found() {
    const wasLost = this.lostAt !== null;
    this.lostAt = null;
    this.detail = undefined;
    this.tell();
    if (wasLost) refresh();
  }

  tell() {
    const element = document.getElementById("connection");
    const text = this.isPaused ? "Paused"
      : this.lostAt !== null ? `No connection since ${new Date(this.lostAt).toISOString().slice(11, 16)} UTC`
        : this.abort !== null ? "Live" : "";
    element.className = `connection ${this.isPaused ? "is-paused" : this.lostAt !== null ? "is-lost" : "is-live"}`;
    element.title = this.detail ?? "";
    if (element.textContent !== text) element.textContent = text;
  }
}

const stream = new Stream();

// ---------------------------------------------------------------------------------------------------------------------
// The page as a whole

document.getElementById("pause").addEventListener("click", (event) => {
  stream.isPaused = !stream.isPaused;
  event.currentTarget.setAttribute("aria-pressed", String(stream.isPaused));
  if (stream.isPaused) stream.close();
  else {
    stream.open();
    refresh();
  }
});
document.getElementById("sign-out").addEventListener("click", () => askForToken(""));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return stream.close();
  stream.open();
  if (!stream.isPaused) refresh();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey || isDialogOpen() || you === null) return;
  event.preventDefault();
  if (!(view instanceof Keys)) {
    location.hash = "#/keys";
    navigate({ focus: false });
  }
  document.getElementById("search")?.focus();
});
window.addEventListener("hashchange", () => {
  if (you === null && needsToken) return;
  // The key `/` has navigated there already.
  if (view instanceof Keys && routeOf().split("?")[0] === "#/keys" && document.activeElement?.id === "search") return;
  navigate();
});
setInterval(tick, 1_000);

if (needsToken && token === null) askForToken("");
else begin();
