// Search in one conversation or in all, with marked words.

import { api } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { ago, author, exact, oneLine, plural, shorten } from "./format.js";
import { avatar } from "./message.js";
import { go, hashOf } from "./route.js";

const WAIT = 220; // milliseconds after the last key
const MOST = 50;
const HINT = "Any of the words may match; “quoted words” match as a phrase.";

export class Search {
  /**
   * `here()`: the id of the open conversation or null; `names()`: of participants in it, by id; `titleOf(id)`: if known;
   * `onOpen(hit, words)`: called before a hit opens.
   */
  constructor({ here, names, titleOf, onOpen }) {
    Object.assign(this, { here, names, titleOf, onOpen });
    this.form = byId("search-form");
    this.input = byId("search");
    this.pane = byId("search-pane");
    this.hits = byId("hits");
    this.title = byId("search-title");
    this.note = byId("search-note");
    this.people = new Map(); // names by id, of hits
    this.tools = new Set();
    this.titles = new Map(); // promises of titles that the list does not have
    for (const place of [this.form, this.pane]) place.addEventListener("input", () => this.soon());
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
    if (!this.input.value.trim()) {
      this.leave();
      return;
    }
    this.timer = setTimeout(() => this.run(), WAIT);
  }

  showScope() {
    byId("search-scope").hidden = this.here() === null || (!this.input.value && document.activeElement !== this.input);
  }

  async run() {
    this.aborter?.abort();
    const aborter = (this.aborter = new AbortController());
    const { q, scope, participant, since, before, ...fields } = Object.fromEntries(new FormData(this.form));
    const conversation = scope === "one" ? this.here() : null;
    this.show();
    if (scope === "one" && conversation === null) {
      this.told("Search", "This server has no search module: open a conversation, and search in it.");
      return;
    }
    setText(this.title, "Searching …");
    try {
      const who = { participant: this.idOf(participant) };
      const when = { since: midnight(since), before: midnight(before, 1) };
      const { hits, total } = await api.search(
        { q: q.trim(), conversation, limit: MOST, ...fields, ...who, ...when },
        aborter.signal,
      );
      this.list(hits, total, conversation === null);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.hits.replaceChildren();
      const elsewhere = error.status === 409 && conversation === null;
      this.told("No search", elsewhere ? `${error.message} Choose “Only this conversation”.` : error.message);
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
    const offer = (id, names) => byId(id).replaceChildren(...names.map((value) => el("option", { value })));
    offer("known-tools", [...this.tools]);
    offer("known-people", [...new Set(this.people.values())]);
  }

  list(hits, total, everywhere) {
    this.learn(hits);
    const many =
      hits.length === MOST
        ? `The best ${MOST} of ${plural(Math.max(total, MOST), "result")}`
        : plural(hits.length, "result");
    const filtered = [...this.pane.querySelectorAll("select, input")].some((field) => field.value);
    const hint = filtered ? "No message fits the words and the filters." : HINT;
    this.told(hits.length ? many : "Nothing found", hits.length ? "" : hint);
    const focused = this.links().indexOf(document.activeElement);
    const found = Map.groupBy(hits, (hit) => hit.conversation);
    const items = [...found].map(([id, some]) => [everywhere && this.head(id), ...some.map((hit) => this.draw(hit))]);
    this.hits.replaceChildren(...items.flat().filter(Boolean));
    if (focused >= 0) (this.links()[focused] ?? this.input).focus();
  }

  /** The title of a conversation, which is read if the list has not loaded it. */
  head(id) {
    const title = el("bdi", { text: shorten(oneLine(this.titleOf(id) ?? ""), 120) });
    if (!title.textContent) {
      if (!this.titles.has(id))
        this.titles.set(
          id,
          api.conversation(id).catch(() => ({})),
        );
      this.titles.get(id).then((info) => setText(title, shorten(oneLine(info.title || info.label || id), 120)));
    }
    return el("li", { class: "group" }, el("h3", {}, title));
  }

  told(title, note) {
    setText(this.title, title);
    setText(this.note, note);
  }

  draw(hit) {
    const { message } = hit;
    const who = author(message);
    const words = wordsOf(hit);
    const link = el(
      "a",
      { class: "hit", href: hashOf({ conversation: hit.conversation, message: message.id }) },
      avatar(who),
      el(
        "span",
        { class: "hit-text" },
        el(
          "span",
          { class: "card-top" },
          el("bdi", { class: "card-who", text: shorten(who.name, 60) }),
          hit.archived && el("span", { class: "tag", text: "in a summary" }),
          el("time", { datetime: message.timestamp, title: exact(message.timestamp), text: ago(message.timestamp) }),
        ),
        el("span", { class: "snippet", dir: "auto" }, ...snippet(hit)),
      ),
    );
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.mark(link);
      this.onOpen(hit, words);
      go({ conversation: hit.conversation, message: message.id });
    });
    return el("li", {}, link);
  }

  mark(link) {
    for (const other of this.links()) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
  }

  links() {
    return [...this.hits.querySelectorAll("a")];
  }

  show() {
    this.pane.hidden = false;
    byId("list-pane").hidden = true;
  }

  clearFilters() {
    for (const field of this.pane.querySelectorAll("select, input")) field.value = "";
  }

  /** Back to the list of conversations. */
  leave() {
    clearTimeout(this.timer);
    this.aborter?.abort();
    this.input.value = "";
    this.clearFilters();
    this.hits.replaceChildren();
    this.pane.hidden = true;
    byId("list-pane").hidden = false;
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
  if (!highlight) return [shorten(oneLine(message.text || toolText(message)), 200)];
  const pieces = [];
  let end = 0;
  for (const [start, stop] of highlight.spans) {
    pieces.push(highlight.text.slice(end, start), el("mark", { text: highlight.text.slice(start, stop) }));
    end = stop;
  }
  return [...pieces, highlight.text.slice(end)];
}

const toolText = (message) => message.parts.map((part) => part.name ?? "").join(" ");

function wordsOf({ highlights }) {
  const found = new Set();
  for (const { text, spans } of highlights) {
    for (const [start, stop] of spans) found.add(text.slice(start, stop).toLowerCase());
  }
  return [...found].filter(Boolean).slice(0, 20);
}
