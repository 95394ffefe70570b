// Search in one conversation or in all, with marked words.

import { api } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { ago, author, exact, oneLine, plural, shorten } from "./format.js";
import { avatar } from "./message.js";
import { go, hashOf } from "./route.js";

const WAIT = 220; // milliseconds after the last key
const MOST = 50;

export class Search {
  /** `here()`: the id of the open conversation or null; `titleOf(id)`; `onOpen(hit, words)`: called before a hit opens. */
  constructor({ here, titleOf, onOpen }) {
    Object.assign(this, { here, titleOf, onOpen });
    this.input = byId("search");
    this.pane = byId("search-pane");
    this.hits = byId("hits");
    this.title = byId("search-title");
    this.note = byId("search-note");
    this.choice = byId("search-scope");
    this.scope = "all";
    this.everywhere = true; // whether the server can search in all conversations
    this.input.addEventListener("input", () => this.soon());
    this.input.addEventListener("focus", () => this.showScope());
    for (const button of this.choice.children)
      button.addEventListener("click", () => this.setScope(button.dataset.scope));
    this.choice.addEventListener("keydown", (event) => this.turn(event));
  }

  get active() {
    return !this.pane.hidden;
  }

  /** Without an index, the server searches only one conversation. */
  setCapability(search) {
    this.everywhere = search === "server";
    if (!this.everywhere) this.scope = "one";
    this.showScope();
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
    this.choice.hidden = this.here() === null || (!this.input.value && document.activeElement !== this.input);
    for (const button of this.choice.children) {
      const chosen = button.dataset.scope === this.scope;
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
  }

  setScope(scope) {
    this.scope = scope;
    this.showScope();
    if (this.input.value.trim()) this.run();
  }

  turn(event) {
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    this.setScope(this.scope === "all" ? "one" : "all");
    this.choice.querySelector("[aria-checked=true]").focus();
  }

  async run() {
    this.aborter?.abort();
    const aborter = (this.aborter = new AbortController());
    const q = this.input.value.trim();
    const conversation = this.scope === "one" ? this.here() : null;
    this.show();
    if (this.scope === "one" && conversation === null) {
      this.told("Search", "This server has no search module: open a conversation, and search in it.");
      return;
    }
    setText(this.title, "Searching …");
    try {
      const { hits } = await api.search({ q, conversation, limit: MOST }, aborter.signal);
      this.list(hits, conversation === null);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.hits.replaceChildren();
      const elsewhere = error.status === 409 && conversation === null;
      this.told(
        "No search",
        elsewhere ? `${error.message} Choose “This one” to search in the open conversation.` : error.message,
      );
    }
  }

  list(hits, everywhere) {
    const many = hits.length === MOST ? `The best ${MOST} results` : plural(hits.length, "result");
    this.told(
      hits.length ? many : "Nothing found",
      hits.length ? "" : "Any of the words may match; “quoted words” match as a phrase.",
    );
    const focused = this.links().indexOf(document.activeElement);
    this.hits.replaceChildren(...hits.map((hit) => this.draw(hit, everywhere)));
    if (focused >= 0) (this.links()[focused] ?? this.input).focus();
  }

  told(title, note) {
    setText(this.title, title);
    setText(this.note, note);
  }

  draw(hit, everywhere) {
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
        everywhere &&
          el("bdi", { class: "hit-place", text: shorten(this.titleOf(hit.conversation) ?? hit.conversation, 80) }),
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

  /** Back to the list of conversations. */
  leave() {
    clearTimeout(this.timer);
    this.aborter?.abort();
    this.input.value = "";
    this.hits.replaceChildren();
    this.pane.hidden = true;
    byId("list-pane").hidden = false;
    this.showScope();
  }
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
