// The list of conversations: pages come by last change, and are shown by the time of the newest message.

import { api } from "./api.js";
import { byId, el, oncePerFrame, setText } from "./dom.js";
import { ago, compact, dayName, exact, number, oneLine, plural, shorten } from "./format.js";
import { hashOf } from "./route.js";

const PAGE = 50;
const FILTERED = 2000; // conversations that a filter examines
const LOOKED = 20_000; // conversations up to which the list loads pages without scrolling, to fill itself
const FAILED = 3_000; // milliseconds before a failed page is requested again
const STEADY = 1200; // milliseconds; the list keeps its order while the pointer moves over it

export class Sidebar {
  /** `isSeen(id)`: whether the user sees the end of a conversation; `onCount(n)`: the number of unseen messages. */
  constructor({ unread, isSeen, onCount }) {
    Object.assign(this, { unread, isSeen, onCount });
    this.items = new Map();
    this.watches = new Set(); // for each page that is loading: the ids of events since the request
    this.more = false;
    this.failed = 0;
    this.current = null;
    this.loading = null;
    this.pointed = 0;
    this.list = byId("conversations");
    this.heads = new Map(); // elements of "Today", "Yesterday", "Earlier"
    this.scroller = byId("list-scroller");
    this.note = byId("list-note");
    this.title = byId("list-title");
    this.filter = byId("filter");
    this.show = oncePerFrame(() => this.render());
    this.filter.addEventListener("input", () => this.show());
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.list.addEventListener("pointermove", () => {
      this.pointed = Date.now();
    });
    this.list.addEventListener("pointerleave", () => {
      this.pointed = 0;
      this.show();
    });
    this.offset = 0;
    this.generation = 0;
    unread.onChange = () => this.show();
    setInterval(() => this.show(), 15_000); // updates texts such as "3 min"
  }

  /** Reload the list, as far as it was loaded. */
  async load() {
    const limit = Math.min(200, Math.max(PAGE, this.items.size));
    const generation = ++this.generation;
    const { page, told } = await this.ask({ limit, last: 1 });
    if (generation !== this.generation) return;
    const known = this.items;
    this.items = new Map();
    for (const conversation of page.conversations) this.put(conversation, known.get(conversation.id));
    for (const [id, item] of known) {
      if (this.items.has(id)) continue;
      if (told.has(id))
        this.items.set(id, item); // added by an event meanwhile
      else item.element?.remove();
    }
    this.goOn(page);
    this.error = null;
    this.show();
  }

  /** A page without the conversations of events since the request, which are newer. */
  async ask(params) {
    const told = new Set();
    this.watches.add(told);
    try {
      const page = await api.conversations(params);
      const conversations = page.conversations.filter(({ id }) => !told.has(id) || this.items.has(id));
      return {
        page: { ...page, conversations: conversations.map((one) => (told.has(one.id) ? { id: one.id } : one)) },
        told,
      };
    } finally {
      this.watches.delete(told);
    }
  }

  goOn(page) {
    this.more = page.next !== null;
    this.total = page.total ?? 0; // where the user may read all; changes meanwhile show at the next page
    this.offset = Number(page.next);
    this.unread.begin(page.conversations.map(({ id }) => this.items.get(id).conversation));
  }

  loadMore() {
    if (!this.more || this.loading || Date.now() - this.failed < FAILED) return;
    const generation = this.generation;
    // Start a little before the end of the last page, because conversations may have been deleted meanwhile.
    const offset = Math.max(0, this.offset - 5);
    this.loading = this.ask({ limit: PAGE, cursor: offset, last: 1 })
      .then(({ page }) => {
        if (generation !== this.generation) return;
        for (const conversation of page.conversations) {
          if (!this.items.has(conversation.id)) this.put(conversation);
        }
        this.goOn(page);
      })
      .catch(() => {
        this.failed = Date.now(); // the header shows the connection state
        setTimeout(this.show, FAILED);
      })
      .finally(() => {
        this.loading = null;
        this.show();
      });
  }

  put(conversation, item = {}) {
    item.conversation = { ...item.conversation, ...conversation };
    if (conversation.last !== undefined) item.last = conversation.last;
    this.items.set(conversation.id, item);
    return item;
  }

  on_changed(data) {
    const { conversation: id } = data;
    for (const told of this.watches) told.add(id);
    this.put({ ...data, id }, this.items.get(id));
    this.show();
  }

  on_gone({ conversation: id }) {
    for (const told of this.watches) told.add(id);
    const item = this.items.get(id);
    if (!item) return;
    this.items.delete(id);
    item.element?.remove();
    this.show();
  }

  info(id) {
    return this.items.get(id)?.conversation ?? null;
  }

  clearFilter() {
    this.filter.value = "";
    this.show();
  }

  link(state, error) {
    clearTimeout(this.waiting);
    if (state === "open") this.trouble(null);
    else if (error) this.waiting = setTimeout(() => this.trouble(error), 900);
  }

  trouble(error) {
    this.error = error?.message ?? null;
    this.show();
  }

  select(id) {
    this.current = id;
    this.render();
    this.items.get(id)?.element?.scrollIntoView({ block: "nearest" });
  }

  // Rendering

  render() {
    const words = this.filter.value.trim().toLowerCase();
    const sorted = [...this.items.values()].sort((left, right) => ascending(timeOf(right), timeOf(left)));
    const steady = Date.now() - this.pointed < STEADY;
    if (steady) setTimeout(this.show, STEADY);
    const order = steady ? this.asShown(sorted) : sorted;
    let unread = 0;
    let matched = 0;
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    let place = this.list.firstElementChild;
    const put = (element) => {
      if (element === place) place = place.nextElementSibling;
      else this.list.insertBefore(element, place);
    };
    const heads = [];
    for (const item of order) {
      if (this.isSeen(item.conversation.id)) this.unread.see(item.conversation.id, item.conversation.message_count);
      const count = this.unread.count(item.conversation);
      unread += count;
      this.draw(item, count);
      const hidden = words && !matches(item, words);
      item.element.hidden = Boolean(hidden);
      if (!hidden) {
        matched += 1;
        const group = GROUPS.find((name) => name === dayName(timeOf(item))) ?? "Earlier";
        if (!heads.includes(group)) {
          heads.push(group);
          put(this.head(group));
        }
      }
      put(item.element);
    }
    for (const [group, head] of this.heads) if (!heads.includes(group)) head.remove();
    if (focused !== document.activeElement) focused?.focus({ preventScroll: true }); // a moved element loses the focus
    const known = this.more && !words && this.total > matched;
    const count = plural(known ? this.total : matched, "conversation");
    const shown = this.more && !known ? count.replace(" ", "+ ") : count;
    setText(this.title, this.items.size ? shown : "Conversations");
    this.told(words, matched);
    if (words && matched < PAGE && this.items.size < FILTERED) this.loadMore();
    if (this.more && this.offset < LOOKED) this.scrolled(); // a page may contain few conversations that this user may read
    this.onCount(unread);
  }

  /** The order on the screen, with new conversations first, while the user may be about to click. */
  asShown(sorted) {
    const at = new Map([...this.list.children].map((element, index) => [element, index]));
    return sorted.sort((left, right) => (at.get(left.element) ?? -1) - (at.get(right.element) ?? -1));
  }

  told(words, matched) {
    let note = "";
    if (this.error) note = `${this.error} Trying again.`;
    else if (!this.items.size)
      note = this.generation && !this.more ? "No conversation yet. The first one appears here by itself." : "";
    else if (words && !matched && !this.more) note = "No conversation matches.";
    else if (this.more && this.items.size >= FILTERED && words)
      note = `Looked at ${number(this.items.size)} conversations.`;
    setText(this.note, note);
  }

  head(group) {
    if (!this.heads.has(group)) this.heads.set(group, el("li", { class: "group" }, el("h3", { text: group })));
    return this.heads.get(group);
  }

  draw(item, unread) {
    const { conversation } = item;
    const selected = conversation.id === this.current;
    const at = timeOf(item);
    const state = JSON.stringify([conversation, item.last, unread, selected, ago(at)]);
    if (item.state === state) return;
    item.state = state;
    if (!item.element) {
      item.link = el("a", { class: "card", href: hashOf({ conversation: conversation.id }) });
      item.element = el("li", { data: { id: conversation.id } }, item.link);
    }
    const { link } = item;
    link.classList.toggle("unread", unread > 0);
    if (selected) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    link.replaceChildren(
      el(
        "span",
        { class: "card-top" },
        el("bdi", {
          class: "card-title",
          text: shorten(oneLine(conversation.title || conversation.label || conversation.id), 160),
        }),
        el("time", { datetime: at, title: `${exact(conversation.first_message_at)} –\n${exact(at)}`, text: ago(at) }),
      ),
      el("span", { class: "card-last" }, ...lastLine(item.last)),
      el(
        "span",
        { class: "card-facts" },
        el("span", { text: facts(conversation) }),
        unread > 0 &&
          el("span", {
            class: "badge",
            text: unread > 999 ? "999+" : number(unread),
            title: `${number(unread)} not seen`,
          }),
      ),
    );
  }

  // Loading more while scrolling

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    if (clientHeight && scrollHeight - scrollTop - clientHeight < 600) this.loadMore();
  }

  links() {
    return [...this.list.querySelectorAll("li:not([hidden]) > a")];
  }
}

const GROUPS = ["Today", "Yesterday"];

/** The time of the newest message: imported conversations have times of their own. */
const timeOf = ({ conversation, last }) =>
  conversation.last_message_at ?? last?.timestamp ?? conversation.updated_at ?? ""; // ISO times in UTC sort as texts

const ascending = (left, right) => Number(left > right) - Number(left < right);

function matches({ conversation, last }, words) {
  const text = [
    conversation.title,
    conversation.label,
    conversation.id,
    conversation.agent_name,
    conversation.user_id,
    last?.text,
  ].join("\n");
  return text.toLowerCase().includes(words);
}

function facts(conversation) {
  const told = [plural(conversation.message_count ?? 0, "message")];
  if (conversation.tokens) told.push(`${compact(conversation.tokens)} tokens`);
  if (conversation.agent_name) told.push(shorten(conversation.agent_name, 40));
  return told.join(" · ");
}

function lastLine(last) {
  if (!last) return [""];
  return [
    el("bdi", { class: "card-who", text: shorten(nameOf(last), 40) }),
    " ",
    el("bdi", { text: shorten(oneLine(last.text ?? ""), 200) }),
  ];
}

/** Without a participant, the name is the role. */
const nameOf = ({ name, role }) =>
  name && name !== role ? name : ({ user: "User", assistant: "Assistant", system: "System", tool: "Tool" }[role] ?? "");
