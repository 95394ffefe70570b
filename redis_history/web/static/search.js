// Search in one conversation or in all, with marked words.

import { api, go, hashOf } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { ago, author, brief, exact, plural, shorten, titleOf } from "./format.js";
import { avatar } from "./message.js";

const WAIT = 220; // milliseconds after the last key
const MOST = 50;
const HINT = "Any of the words may match; “quoted words” match as a phrase.";

export class Search {
  /**
   * `openId()`: of the open conversation, or null; `names()`: of its participants, by id; `knownTitle(id)`: if the list
   * has it; `onOpen(hit, words)`: called before a hit opens.
   */
  constructor({ openId, names, knownTitle, onOpen }) {
    Object.assign(this, { openId, names, knownTitle, onOpen });
    this.form = byId("search-form");
    this.input = byId("search");
    this.pane = byId("search-pane");
    this.hits = byId("hits");
    this.people = new Map(); // names by id, of hits
    this.tools = new Set();
    this.titles = new Map(); // promises of titles that the list does not have
    for (const part of [this.form, this.pane]) part.addEventListener("input", () => this.soon());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", (event) => {
      event.preventDefault();
      this.clearFilters();
      this.soon();
    });
    this.input.addEventListener("focus", () => this.showScope());
  }

  get active() {
    return !this.pane.hidden;
  }

  get filters() {
    return [...this.pane.querySelectorAll("select, input")];
  }

  /** Without an index, the server searches only one conversation. */
  setCapability(search) {
    if (search !== "server") this.form.elements.scope.checked = true;
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  soon() {
    clearTimeout(this.timer);
    this.showScope();
    if (this.input.value.trim()) this.timer = setTimeout(() => this.run(), WAIT);
    else this.leave();
  }

  showScope() {
    const used = this.input.value || document.activeElement === this.input;
    byId("search-scope").hidden = this.openId() === null || !used;
  }

  async run() {
    this.aborter?.abort();
    const { signal } = (this.aborter = new AbortController());
    const { q, scope, participant, since, before, ...fields } = Object.fromEntries(new FormData(this.form));
    const conversation = scope === "one" ? this.openId() : null;
    this.showPane(true);
    if (scope === "one" && conversation === null) {
      this.say("Search", "This server has no search module: open a conversation, and search in it.");
      return;
    }
    setText(byId("search-title"), "Searching …");
    const days = { since: midnight(since), before: midnight(before, 1) };
    const params = { q: q.trim(), conversation, limit: MOST, ...fields, participant: this.idOf(participant), ...days };
    try {
      const { hits, total } = await api.search(params, signal);
      this.list(hits, total, conversation === null);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.hits.replaceChildren();
      const elsewhere = error.status === 409 && conversation === null;
      this.say("No search", elsewhere ? `${error.message} Choose “Only this conversation”.` : error.message);
    }
  }

  /** The id of a participant who is known by this name, or else the text itself. */
  idOf(text) {
    const known = [...this.people].find(([, name]) => name.toLowerCase() === text.trim().toLowerCase());
    return known ? known[0] : text.trim();
  }

  /** Offer the people and tools of hits, and of the open conversation, as filters. */
  learn(hits) {
    for (const [id, name] of this.names()) this.people.set(id, name);
    for (const { message } of hits) {
      if (message.participant) this.people.set(message.participant.id, author(message).name);
      for (const part of message.parts) if (part.type.startsWith("tool_") && part.name) this.tools.add(part.name);
    }
    const offer = (id, names) => byId(id).replaceChildren(...Array.from(names, (value) => el("option", { value })));
    offer("known-tools", this.tools);
    offer("known-people", new Set(this.people.values()));
  }

  list(hits, total, everywhere) {
    this.learn(hits);
    const best = `The best ${MOST} of ${plural(Math.max(total, MOST), "result")}`;
    const hint = this.filters.some((field) => field.value) ? "No message fits the words and the filters." : HINT;
    if (hits.length) this.say(hits.length === MOST ? best : plural(hits.length, "result"), "");
    else this.say("Nothing found", hint);
    const focused = this.links().indexOf(document.activeElement);
    const groups = Map.groupBy(hits, (hit) => hit.conversation);
    const items = [...groups].flatMap(([id, some]) => [
      everywhere && this.head(id),
      ...some.map((hit) => this.draw(hit)),
    ]);
    this.hits.replaceChildren(...items.filter(Boolean));
    if (focused >= 0) (this.links()[focused] ?? this.input).focus();
  }

  /** The title of a conversation, which is loaded if the list does not have it. */
  head(id) {
    const title = el("bdi", brief(this.knownTitle(id) ?? "", 120));
    if (!title.textContent) {
      if (!this.titles.has(id))
        this.titles.set(
          id,
          api.conversation(id).catch(() => ({ id })),
        );
      this.titles.get(id).then((info) => setText(title, brief(titleOf(info), 120)));
    }
    return el("li.group", el("h3", title));
  }

  say(title, note) {
    setText(byId("search-title"), title);
    setText(byId("search-note"), note);
  }

  draw(hit) {
    const { message, conversation, archived } = hit;
    const who = author(message);
    const route = { conversation, message: message.id };
    const time = { datetime: message.timestamp, title: exact(message.timestamp) };
    const top = el(
      "span.card-top",
      el("bdi.card-who", shorten(who.name, 60)),
      archived && el("span.tag", "in a summary"),
      el("time", time, ago(message.timestamp)),
    );
    const text = el("span.hit-text", top, el("span.snippet", { dir: "auto" }, ...snippet(hit)));
    const link = el("a.hit", { href: hashOf(route) }, avatar(who), text);
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      for (const other of this.links()) other.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
      this.onOpen(hit, wordsOf(hit));
      go(route);
    });
    return el("li", link);
  }

  links() {
    return [...this.hits.querySelectorAll("a")];
  }

  /** Show the results instead of the list of conversations, or the reverse. */
  showPane(shown) {
    this.pane.hidden = !shown;
    byId("list-pane").hidden = shown;
  }

  clearFilters() {
    for (const field of this.filters) field.value = "";
  }

  /** Back to the list of conversations. */
  leave() {
    clearTimeout(this.timer);
    this.aborter?.abort();
    this.input.value = "";
    this.clearFilters();
    this.hits.replaceChildren();
    this.showPane(false);
    this.showScope();
  }
}

/** The beginning of a local day, or of the day after it, as an ISO time. */
function midnight(day, later = 0) {
  if (!day) return null;
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + later).toISOString();
}

/** The fragment with the words marked. The spans count UTF-16 units. */
function snippet({ highlights: [highlight], message }) {
  if (!highlight) return [brief(message.text || message.parts.map((part) => part.name ?? "").join(" "), 200)];
  const pieces = [];
  let end = 0;
  for (const [start, stop] of highlight.spans) {
    pieces.push(highlight.text.slice(end, start), el("mark", highlight.text.slice(start, stop)));
    end = stop;
  }
  return [...pieces, highlight.text.slice(end)];
}

function wordsOf({ highlights }) {
  const words = highlights.flatMap(({ text, spans }) => spans.map((span) => text.slice(...span)));
  return [...new Set(words.map((word) => word.toLowerCase()).filter(Boolean))].slice(0, 20);
}
