// The model of one conversation: a window of consecutive messages, kept up to date by the events of the stream.
// No DOM. `older` and `newer` say whether there are messages before and after the window.

import { api } from "./api.js";

const PAGE = 200;
const KEPT = 3000; // messages in the window; those furthest from the viewport are dropped
const KEPT_CHARACTERS = 12_000_000;
export const FIRST = "-9007199254740991.0"; // a position before all messages

/** Compare positions, "microseconds.sequence". */
export function compare(left, right) {
  const [leftTime, leftSequence] = left.split(".");
  const [rightTime, rightSequence] = right.split(".");
  return leftTime - rightTime || leftSequence - rightSequence;
}

/** A value for `since`, which is exclusive, so that the page starts at this position. */
const justBefore = (position) => {
  const [time, sequence] = position.split(".");
  return `${time}.${sequence - 1}`;
};

const precedes = (left, right) => compare(left.position, right.position) < 0;

/** Whether this summary replaced a message. */
const replaces = (summary, message) =>
  message.id !== summary.id &&
  compare(message.position, summary.position) <= 0 &&
  (message.role !== "system" || message.is_summary) &&
  message.status !== "streaming" &&
  !message.metadata?.pinned;

/** A message with the whole texts of its former state, where only their beginning was sent again. */
function withKnownTexts(message, before) {
  const parts = message.parts.map((part, at) => {
    const known = before.parts[at];
    if (part.type !== "text" || !part.cut || known?.cut || !known?.text?.startsWith(part.text)) return part;
    return Array.from(known.text).length === part.cut ? known : part;
  });
  if (parts.every((part, at) => part === message.parts[at])) return message;
  return { ...message, parts, text: before.text.startsWith(message.text) ? before.text : message.text };
}

export class Conversation {
  /** `onChange(change)` is called after each change of the model; see `change.kind`. */
  constructor(id, onChange) {
    this.id = id;
    this.onChange = onChange;
    this.info = null;
    this.run = null; // the active run
    this.turns = []; // what it is owed
    this.aborter = new AbortController();
    this.moving = false; // whether another window is loading
    this.generation = 0; // incremented with each new window; pages requested before are discarded
    this.records = new Set(); // for each page that is loading: the events since the request
    this.clear();
  }

  close() {
    this.generation += 1;
    this.aborter.abort();
  }

  clear() {
    this.messages = [];
    this.byId = new Map();
    this.older = this.newer = false;
    this.emptied = null; // where the window was when its last message was removed
    this.missed = 0; // messages appended after the end of the window
    this.loading = { older: null, newer: null };
  }

  get first() {
    return this.messages[0] ?? null;
  }

  get last() {
    return this.messages.at(-1) ?? null;
  }

  // Pages

  /** Load the newest messages, or those around a position. Returns the cursor from which to follow events. */
  async open(position = null) {
    // The messages may be newer than the cursor, if they are around a position, or if the user has moved elsewhere
    // meanwhile: the events then repeat changes.
    const { cursor } = position === null ? await this.refresh(null) : await this.ask({ limit: 1 });
    if (position === null) this.onChange({ kind: "opened" });
    else await this.refresh(position);
    return cursor;
  }

  async toNewest() {
    if (this.newer || this.moving) await this.refresh(null);
  }

  async toOldest() {
    if (this.older || this.moving) await this.refresh(FIRST);
  }

  /** Load another window: around a position, or at the end. It is dropped if one more was requested meanwhile. */
  async refresh(position) {
    const generation = ++this.generation;
    const events = this.record();
    this.moving = true;
    try {
      const page = await (position === null ? this.ask({ limit: PAGE }) : this.around(position));
      if (generation !== this.generation) return page;
      this.clear();
      this.older = page.more;
      this.newer = page.newer ?? false;
      this.put(page.messages, events);
      this.onChange({ kind: "moved" });
      return page;
    } finally {
      this.records.delete(events);
      if (generation === this.generation) this.moving = false;
    }
  }

  async around(position) {
    if (position === FIRST) {
      const { messages, more } = await this.ask({ limit: PAGE, since: FIRST, first: 1 });
      return { messages, more: false, newer: more };
    }
    const [earlier, later] = await Promise.all([
      this.ask({ limit: PAGE / 2, before: position }),
      this.ask({ limit: PAGE / 2, since: justBefore(position), first: 1 }),
    ]);
    return { messages: [...earlier.messages, ...later.messages], more: earlier.more, newer: later.more };
  }

  /** Load the next page of a side, "older" or "newer", unless it is already loading, there is none, or another window
   * is loading, in which the page would leave a gap. */
  extend(side) {
    if (!this[side] || this.moving) return null;
    if (!this.messages.length) return this.refresh(this.emptied);
    const bound = side === "older" ? { before: this.first.position } : { since: this.last.position, first: 1 };
    this.loading[side] ??= this.load(side, bound);
    return this.loading[side];
  }

  async load(side, bound) {
    const generation = this.generation;
    const events = this.record();
    try {
      const page = await this.ask({ limit: PAGE, ...bound });
      if (generation !== this.generation) return;
      this[side] = page.more;
      if (side === "newer" && !page.more) this.missed = 0;
      this.put(page.messages, events);
      this.trim(side === "older" ? "newer" : "older");
      this.loading[side] = null;
      this.onChange({ kind: side });
    } finally {
      this.records.delete(events);
      if (generation === this.generation) this.loading[side] = null;
    }
  }

  ask(params) {
    return api.messages(this.id, params, this.aborter.signal);
  }

  /** Record the events from now on. */
  record() {
    const events = [];
    this.records.add(events);
    return events;
  }

  /** Add a page, and then repeat the events since its request, which may be newer. */
  put(messages, events) {
    for (const message of messages) this.insert(message);
    for (const [name, data] of events) this[`on_${name}`](data);
  }

  /** Insert a message if it belongs to the window. */
  place(message) {
    const above = this.older && (!this.first || precedes(message, this.first));
    const below = this.newer && (!this.last || precedes(this.last, message));
    return !above && !below && this.insert(message);
  }

  insert(message) {
    if (this.byId.has(message.id)) return false;
    this.byId.set(message.id, message);
    let at = this.messages.length;
    while (at > 0 && precedes(message, this.messages[at - 1])) at -= 1;
    this.messages.splice(at, 0, message);
    return true;
  }

  /** Drop messages at one side of the window, to limit the memory of a long session. */
  trim(side) {
    const size = (message) => (message.text?.length ?? 0) + 400;
    let characters = this.messages.reduce((sum, message) => sum + size(message), 0);
    while (this.messages.length > 2 * PAGE && (this.messages.length > KEPT || characters > KEPT_CHARACTERS)) {
      const message = side === "newer" ? this.messages.pop() : this.messages.shift();
      characters -= size(message);
      this.byId.delete(message.id);
      this[side] = true;
    }
  }

  // Events. An event may repeat a change that a page already contains. Each handler returns the change, if any.

  apply(name, data) {
    if (!this[`on_${name}`]) return;
    const change = this[`on_${name}`](data);
    // Growth is recorded as the grown message, because a page may already contain a part of it.
    const event = name === "grew" ? change && ["updated", { message: change.message }] : [name, data];
    if (event) for (const events of this.records) events.push(event);
    if (change?.kind === "appended" && this.newer) this.missed += change.added.length - change.inside;
    if (change) this.onChange(change);
  }

  on_appended({ messages, removed_ids: ids = [] }) {
    const removed = this.drop(ids);
    const added = messages.filter((message) => !this.byId.has(message.id));
    const inside = added.filter((message) => this.place(message)).length;
    return { kind: "appended", added, inside, removed };
  }

  on_updated({ message }) {
    return this.complete(message) && { kind: "updated", message };
  }

  /** A reply that is being written has grown. `whole`: this is all of it so far. */
  on_grew({ id, delta, whole, parts }) {
    const before = this.byId.get(id);
    if (before?.status !== "streaming") return null;
    const grown = whole ? [] : [...before.parts];
    const continues = grown.at(-1)?.type === "text";
    for (const part of parts ?? [{ type: "text", text: continues ? delta : delta.replace(/^\n/, "") }]) {
      const last = grown.at(-1);
      if (part.type === "text" && last?.type === "text") grown.splice(-1, 1, { ...last, text: last.text + part.text });
      else grown.push(part);
    }
    const message = { ...before, parts: grown, text: whole ? delta : before.text + delta };
    this.complete(message);
    // Other parts, such as calls of tools, also change the rows of others.
    return whole || parts ? { kind: "updated", message } : { kind: "updated", message, grown: id };
  }

  on_deleted({ ids }) {
    return { kind: "deleted", ids, removed: this.drop(ids) };
  }

  /** Replaces all messages that the compaction archived, which the event does not list. */
  on_compacted({ summary, count }) {
    const replaced = this.messages.filter((message) => replaces(summary, message));
    const removed = this.drop(replaced.map((message) => message.id));
    this.place(summary);
    return { kind: "compacted", removed, summary, count };
  }

  on_cleared() {
    return this.empty("cleared");
  }

  on_gone() {
    this.run = null;
    this.turns = [];
    return this.empty("gone");
  }

  empty(kind) {
    this.generation += 1;
    this.moving = false;
    this.clear();
    return { kind };
  }

  on_conversation({ record }) {
    this.info = { ...this.info, ...record };
    return { kind: "info" };
  }

  /** Fill in what was cut of a message. `whole` was read meanwhile: a newer state of the message stays. */
  fill(message, whole) {
    const now = this.byId.get(message.id);
    const parts = now?.parts.map((part, at) => (part.cut && whole.parts[at]) || part);
    if (now?.status === "streaming") this.complete({ ...now, parts });
    else if (now === message) this.complete(whole);
  }

  /** Replace a message by a newer state; false if it is not in the window. */
  complete(message) {
    const before = this.byId.get(message.id);
    const at = this.messages.indexOf(before);
    if (at < 0) return false;
    this.messages[at] = withKnownTexts(message, before);
    this.byId.set(message.id, this.messages[at]);
    return true;
  }

  drop(ids) {
    const removed = ids.map((id) => this.byId.get(id)).filter(Boolean);
    if (!removed.length) return removed;
    const gone = new Set(removed);
    this.messages = this.messages.filter((message) => !gone.has(message));
    this.emptied = removed[0].position;
    for (const message of removed) this.byId.delete(message.id);
    return removed;
  }
}
