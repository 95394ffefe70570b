// The list of conversations: pages come by last change, and are shown by the time of the newest message.

import { api, hashOf } from "./api.js";
import { byId, el, oncePerFrame, setText } from "./dom.js";
import {
  ago,
  brief,
  compact,
  dayName,
  exact,
  number,
  ownerOf,
  ownerText,
  plural,
  roleName,
  shorten,
  titleOf,
} from "./format.js";
import { troubleOf } from "./header.js";

const PAGE = 50;
const FILTERED = 2000; // conversations that a filter examines
const OFFERED = 200; // owners and agents to choose from
const CHOSEN = 300; // milliseconds after the last key in the choice of an owner or an agent
const FAILED = 3_000; // milliseconds before a failed page is requested again
const STEADY = 1200; // milliseconds; the list keeps its order while the pointer moves over it
const STATUSES = ["owed", "running", "waiting", "parked"]; // of turns: a later one matters more
const GROUPS = ["Today", "Yesterday"];

export class Sidebar {
  /** `isSeen(id)`: whether the user sees the end of a conversation; `onCount(n)`: the number of unseen messages. */
  constructor({ unread, isSeen, onCount }) {
    Object.assign(this, { unread, isSeen, onCount });
    this.items = new Map(); // {conversation, last, element, link} by id
    this.changes = new Set(); // for each page that is loading: the ids of events since the request
    this.turnChanges = new Set(); // the same, of turns
    this.loaded = new Promise((resolve) => {
      this.setLoaded = resolve;
    });
    this.next = null; // the cursor of the next page
    this.generation = 0;
    this.failed = 0;
    this.pointed = 0;
    this.current = null;
    this.loading = null;
    this.list = byId("conversations");
    this.heads = new Map(); // elements of "Today", "Yesterday", "Earlier"
    this.scroller = byId("list-scroller");
    this.filter = byId("filter");
    this.show = oncePerFrame(() => this.render());
    this.filter.addEventListener("input", () => this.show());
    this.selected = {}; // the owner and the agent whose conversations the server lists
    this.form = byId("list-filters").querySelector("form");
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => {
      clearTimeout(this.selecting);
      this.selecting = setTimeout(() => this.choose(), CHOSEN);
    });
    this.form.addEventListener("focusin", () => this.offer());
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.list.addEventListener("pointermove", () => {
      this.pointed = Date.now();
    });
    this.list.addEventListener("pointerleave", () => {
      this.pointed = 0;
      this.show();
    });
    unread.onChange = () => this.show();
    setInterval(() => this.show(), 15_000); // updates texts such as "3 min"
  }

  /** List the conversations of the owner and the agent in the form. */
  choose() {
    const fields = [...new FormData(this.form)].map(([name, value]) => [name, value.trim()]);
    this.selected = Object.fromEntries(fields.filter(([, value]) => value));
    for (const [id, item] of this.items) {
      if (this.belongs(item.conversation)) continue;
      item.element?.remove();
      this.items.delete(id);
    }
    this.next = null;
    this.show();
    this.load().then(
      () => this.offer(),
      (error) => this.fail(error),
    );
  }

  /** Whether the form selects a conversation. */
  belongs({ user_id: owner = null, agent_name: agent = null }) {
    const { user_id: user, agent_name: name } = this.selected;
    return (!user || owner === ownerOf(user)) && (!name || agent === name);
  }

  /** Offer the owners and agents of the listed conversations. */
  offer() {
    const known = [...this.items.values()].map(({ conversation }) => conversation);
    const fill = (id, values) => {
      const offered = [...new Set(values)].sort().slice(0, OFFERED);
      byId(id).replaceChildren(...offered.map((value) => el("option", { value })));
    };
    const isGiven = (value) => (value ?? "") !== "";
    fill(
      "known-owners",
      known
        .map((one) => one.user_id)
        .filter(isGiven)
        .map(ownerText),
    );
    fill("known-agents", known.map((one) => one.agent_name).filter(isGiven));
  }

  /** Reload the list, as far as it was loaded. */
  async load() {
    const limit = Math.min(200, Math.max(PAGE, this.items.size));
    const generation = ++this.generation;
    const { page, changed } = await this.request({ limit });
    if (generation !== this.generation) return;
    const known = this.items;
    this.items = new Map();
    for (const conversation of page.conversations) this.put(conversation, known.get(conversation.id));
    for (const [id, item] of known) {
      if (this.items.has(id)) continue;
      if (changed.has(id)) this.items.set(id, item);
      else item.element?.remove();
    }
    this.added(page);
    this.error = null;
    this.show();
    this.setLoaded();
    this.loadTurns().catch(() => {}); // events follow
  }

  /** A page without the data of conversations that events changed since the request, because events are newer. */
  async request(params) {
    const changed = new Set();
    this.changes.add(changed);
    try {
      const page = await api.conversations({ ...params, ...this.selected, last: 1 });
      const conversations = page.conversations
        .filter(({ id }) => !changed.has(id) || this.items.has(id))
        .map((one) => (changed.has(one.id) ? { id: one.id } : one));
      return { page: { ...page, conversations }, changed };
    } finally {
      this.changes.delete(changed);
    }
  }

  added(page) {
    this.total = page.total ?? 0; // where the user may read all; changes meanwhile show at the next page
    this.next = page.next;
    this.unread.begin(page.conversations.map(({ id }) => this.items.get(id).conversation));
  }

  loadMore() {
    if (!this.next || this.loading || Date.now() - this.failed < FAILED) return;
    const generation = this.generation;
    this.loading = this.request({ limit: PAGE, cursor: this.next })
      .then(({ page }) => {
        if (generation !== this.generation) return;
        for (const conversation of page.conversations) if (!this.items.has(conversation.id)) this.put(conversation);
        this.added(page);
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
  }

  /** Show what the conversations are owed. Events since the request are newer. */
  async loadTurns() {
    const changed = new Set();
    this.turnChanges.add(changed);
    try {
      const { turns } = await api.turns();
      const owed = new Map();
      for (const status of STATUSES) {
        for (const turn of turns) if (turn.status === status) owed.set(turn.conversation, status);
      }
      for (const [id, { conversation }] of this.items) if (!changed.has(id)) conversation.turn = owed.get(id) ?? null;
    } finally {
      this.turnChanges.delete(changed);
    }
    this.show();
  }

  on_changed({ conversation: id, ...data }) {
    for (const changed of this.changes) changed.add(id);
    if ("turn" in data) for (const changed of this.turnChanges) changed.add(id);
    if (this.belongs(data)) this.put({ ...data, id }, this.items.get(id));
    else this.drop(id);
    this.show();
  }

  on_gone({ conversation: id }) {
    for (const changed of this.changes) changed.add(id);
    this.drop(id);
    this.show();
  }

  drop(id) {
    this.items.get(id)?.element?.remove();
    this.items.delete(id);
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
    const message = troubleOf(state, error);
    if (state === "open") this.fail(null);
    else if (message) this.waiting = setTimeout(() => this.fail({ message }), error && !error.away ? 900 : 0);
  }

  fail(error) {
    this.error = error?.message ?? null;
    this.show();
  }

  select(id) {
    this.current = id;
    this.render();
    this.items.get(id)?.element?.scrollIntoView({ block: "nearest" });
  }

  links() {
    return [...this.list.querySelectorAll("li:not([hidden]) > a")];
  }

  // Rendering

  render() {
    const words = this.filter.value.trim().toLowerCase();
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    let next = this.list.firstElementChild;
    const place = (element) => {
      if (element === next) next = next.nextElementSibling;
      else this.list.insertBefore(element, next);
    };
    const groups = new Set();
    let unread = 0;
    let matched = 0;
    for (const item of this.ordered()) {
      const { conversation } = item;
      if (this.isSeen(conversation.id)) this.unread.see(conversation.id, conversation.message_count);
      const count = this.unread.count(conversation);
      unread += count;
      this.draw(item, count);
      item.element.hidden = Boolean(words) && !matches(item, words);
      if (!item.element.hidden) {
        matched += 1;
        const group = GROUPS.find((name) => name === dayName(item.time)) ?? "Earlier";
        if (!groups.has(group)) place(this.head(group));
        groups.add(group);
      }
      place(item.element);
    }
    for (const [group, head] of this.heads) if (!groups.has(group)) head.remove();
    if (focused !== document.activeElement) focused?.focus({ preventScroll: true }); // a moved element loses the focus
    this.showCount(words, matched);
    if (words && matched < PAGE && this.items.size < FILTERED) this.loadMore();
    if (this.next) this.scrolled(); // a page may contain few conversations that this user may read
    this.onCount(unread);
  }

  /** The items by time, as a tree. While the user may be about to click, in the order on the screen, new ones first. */
  ordered() {
    const sorted = this.tree([...this.items.values()].sort((left, right) => ascending(timeOf(right), timeOf(left))));
    if (Date.now() - this.pointed >= STEADY) return sorted;
    setTimeout(this.show, STEADY);
    const at = new Map(Array.from(this.list.children, (element, index) => [element, index]));
    return sorted.sort((left, right) => (at.get(left.element) ?? -1) - (at.get(right.element) ?? -1));
  }

  /** Put branches below the conversation that they come from, which moves up with its newest branch. */
  tree(sorted) {
    const originOf = ({ conversation: { forked_from: from, created_at: created } }) => {
      const origin = this.items.get(from?.conversation_id);
      return origin?.conversation.created_at < created ? origin : undefined; // no circles: ids may be used again
    };
    const branches = Map.groupBy(sorted, originOf);
    const placed = new Set();
    const place = (item, depth, time) => {
      placed.add(Object.assign(item, { depth, time }));
      for (const one of branches.get(item) ?? []) place(one, depth + 1, time);
    };
    for (const item of sorted) {
      let root = item;
      for (let origin = item; origin; origin = originOf(root)) root = origin;
      if (!placed.has(root)) place(root, 0, timeOf(item));
    }
    return [...placed];
  }

  showCount(words, matched) {
    const known = this.next && !words && this.total > matched;
    const count = plural(known ? this.total : matched, "conversation");
    const shown = this.next && !known ? count.replace(" ", "+ ") : count;
    setText(byId("list-title"), this.items.size ? shown : "Conversations");
    let note = "";
    if (this.error) note = `${this.error} Trying again.`;
    else if (this.next) {
      if (words && this.items.size >= FILTERED) note = `Searched ${number(this.items.size)} conversations.`;
    } else if (!this.items.size) {
      if (Object.keys(this.selected).length) note = "No conversation matches.";
      else if (this.generation) note = "No conversation yet. The first one appears here by itself.";
    } else if (words && !matched) note = "No conversation matches.";
    setText(byId("list-note"), note);
  }

  head(group) {
    if (!this.heads.has(group)) this.heads.set(group, el("li.group", el("h3", group)));
    return this.heads.get(group);
  }

  draw(item, unread) {
    const { conversation, last } = item;
    const selected = conversation.id === this.current;
    const datetime = timeOf(item);
    const state = JSON.stringify([conversation, last, unread, selected, ago(datetime), item.depth]);
    if (item.state === state) return;
    item.state = state;
    item.link ??= el("a.card", { href: hashOf({ conversation: conversation.id }) });
    item.element ??= el("li", { data: { id: conversation.id } }, item.link);
    item.link.style.setProperty("--depth", Math.min(item.depth, 5));
    item.link.classList.toggle("unread", unread > 0);
    if (selected) item.link.setAttribute("aria-current", "true");
    else item.link.removeAttribute("aria-current");
    const title = `${exact(conversation.first_message_at)} –\n${exact(datetime)}`;
    const badge = { title: `${number(unread)} not seen` };
    item.link.replaceChildren(
      el(
        "span.card-top",
        el("bdi.card-title", brief(titleOf(conversation), 160)),
        el("time", { datetime, title }, ago(datetime)),
      ),
      el(
        "span.card-last",
        ...(last ? [el("bdi.card-who", nameOf(last)), " ", el("bdi", brief(last.text ?? "", 200))] : []),
      ),
      el(
        "span.card-facts",
        el("span", facts(conversation)),
        conversation.turn && el("span.tag", { data: { turn: conversation.turn } }, conversation.turn),
        unread > 0 && el("span.badge", badge, unread > 999 ? "999+" : number(unread)),
      ),
    );
  }

  /** Load more conversations near the end of the loaded ones. */
  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    if (clientHeight && scrollHeight - scrollTop - clientHeight < 600) this.loadMore();
  }
}

/** The time of the newest message: imported conversations have times of their own. */
const timeOf = ({ conversation, last }) =>
  conversation.last_message_at ?? last?.timestamp ?? conversation.updated_at ?? ""; // ISO times in UTC sort as texts

const ascending = (left, right) => Number(left > right) - Number(left < right);

function matches({ conversation: { title, label, id, agent_name: agent, user_id: owner }, last }, words) {
  return [title, label, id, agent, owner, last?.text].join("\n").toLowerCase().includes(words);
}

function facts({ message_count: count, estimated_tokens: tokens, agent_name: agent, forked_from: origin }) {
  const texts = [
    origin && "branch",
    plural(count ?? 0, "message"),
    tokens && `≈ ${compact(tokens)} tokens`,
    agent && shorten(agent, 40),
  ];
  return texts.filter(Boolean).join(" · ");
}

/** Without a participant, the name is the role. */
const nameOf = ({ name, role }) => shorten(name && name !== role ? name : roleName(role), 40);

const KEPT = 2000; // conversations

/** Stores the number of seen messages of each conversation in the browser. Without storage, only in this page. */
export class Unread {
  constructor(name) {
    this.key = `redis-history:seen:${name}`;
    const stored = this.stored();
    this.first = !stored; // the first visit, until the list is loaded
    this.started = stored?.started ?? Date.now();
    this.seen = new Map(stored?.seen);
    // Another tab of this page has updated the storage.
    addEventListener("storage", (event) => {
      if (event.key !== this.key) return;
      this.seen = new Map(this.stored()?.seen);
      this.onChange?.();
    });
  }

  stored() {
    try {
      return JSON.parse(localStorage.getItem(this.key));
    } catch {
      return null; // storage is disabled or invalid: as on a first visit
    }
  }

  /** The number of unseen messages of a conversation. Messages from before the first visit count as seen. */
  count({ id, message_count: count, created_at: created }) {
    const seen = this.seen.get(id);
    if (seen === undefined) return Date.parse(created) >= this.started ? count : 0;
    if (count < seen) this.see(id, count);
    return Math.max(0, count - seen);
  }

  /** Count later messages as unseen. */
  begin(conversations) {
    for (const conversation of conversations) {
      const { id, message_count: count } = conversation;
      if (!this.seen.has(id) && (this.first || this.count(conversation) === 0)) this.seen.set(id, count);
    }
    this.first = false;
    this.save();
  }

  see(id, count) {
    if (this.seen.get(id) === count) return;
    this.seen.delete(id); // keep the latest at the end
    this.seen.set(id, count);
    this.save();
  }

  save() {
    if (this.first) return; // nothing to store yet
    try {
      localStorage.setItem(this.key, JSON.stringify({ started: this.started, seen: [...this.seen].slice(-KEPT) }));
    } catch {
      // storage is full or disabled
    }
  }
}
