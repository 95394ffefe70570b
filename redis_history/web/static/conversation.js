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
  (message.role !== "system" || message.is_summary);

export class Conversation {
  /** `onChange(change)` is called after each change of the model; see `change.kind`. */
  constructor(id, onChange) {
    this.id = id;
    this.onChange = onChange;
    this.info = null;
    this.aborter = new AbortController();
    this.moving = false; // whether another window is loading
    this.generation = 0; // incremented with each new window; pages requested before are discarded
    this.watches = new Set(); // for each page that is loading: the changes of events since the request
    this.clear();
  }

  close() {
    this.generation += 1;
    this.aborter.abort();
  }

  clear() {
    this.messages = [];
    this.byId = new Map();
    this.older = false;
    this.newer = false;
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
    if (position !== null) {
      const { cursor } = await this.ask({ limit: 1 });
      await this.refresh(position); // may be newer than the cursor: the events then repeat changes
      return cursor;
    }
    // The user may have moved elsewhere meanwhile. Messages read there are newer than this cursor, but repeated
    // events do no harm.
    const { cursor } = await this.replace(
      () => this.ask({ limit: PAGE }),
      (page) => ({ older: page.more, newer: false }),
    );
    this.onChange({ kind: "opened" });
    return cursor;
  }

  async toNewest() {
    if (this.newer || this.moving) await this.refresh(null);
  }

  async toOldest() {
    if (!this.older && !this.moving) return;
    await this.replace(
      () => this.ask({ limit: PAGE, since: FIRST, first: 1 }),
      (page) => ({ older: false, newer: page.more }),
    );
  }

  /** Reload the window: around a position, or at the end. */
  async refresh(position) {
    if (position === null) {
      await this.replace(
        () => this.ask({ limit: PAGE }),
        (page) => ({ older: page.more, newer: false }),
      );
      return;
    }
    await this.replace(
      async () => {
        const [earlier, later] = await Promise.all([
          this.ask({ limit: PAGE / 2, before: position }),
          this.ask({ limit: PAGE / 2, since: justBefore(position), first: 1 }),
        ]);
        return { messages: [...earlier.messages, ...later.messages], earlier, later };
      },
      ({ earlier, later }) => ({ older: earlier.more, newer: later.more }),
    );
  }

  /** Make the loaded messages the window, unless another window was requested meanwhile. */
  async replace(load, edges) {
    const generation = ++this.generation;
    const watch = this.watch();
    this.moving = true;
    try {
      const page = await load();
      if (generation !== this.generation) return page;
      this.clear();
      Object.assign(this, edges(page));
      this.put(page.messages, watch);
      this.onChange({ kind: "moved" });
      return page;
    } finally {
      this.watches.delete(watch);
      if (generation === this.generation) this.moving = false;
    }
  }

  /** Load the next page of a side, "older" or "newer", unless it is already loading, there is none, or another window
   * is loading, in which the page would leave a gap. */
  extend(side) {
    if (!this[side] || this.moving) return null;
    if (!this.messages.length) return this.refresh(this.emptied);
    const bound = side === "older" ? { before: this.first.position } : { since: this.last.position, first: 1 };
    this.loading[side] ??= this.read(side, bound);
    return this.loading[side];
  }

  async read(side, bound) {
    const generation = this.generation;
    const watch = this.watch();
    try {
      const page = await this.ask({ limit: PAGE, ...bound });
      if (generation !== this.generation) return;
      this[side] = page.more;
      if (side === "newer" && !page.more) this.missed = 0;
      this.put(page.messages, watch);
      this.letGo(side === "older" ? "newer" : "older");
      this.loading[side] = null;
      this.onChange({ kind: side });
    } finally {
      this.watches.delete(watch);
      if (generation === this.generation) this.loading[side] = null;
    }
  }

  ask(params) {
    return api.messages(this.id, params, this.aborter.signal);
  }

  watch() {
    const watch = { gone: new Set(), changed: new Map(), appended: [], summaries: [] };
    this.watches.add(watch);
    return watch;
  }

  /** Add a page. Events that arrived after the request take precedence. */
  put(messages, watch) {
    for (const message of messages) {
      if (watch.gone.has(message.id) || watch.summaries.some((summary) => replaces(summary, message))) continue;
      this.insert(watch.changed.get(message.id) ?? message);
    }
    for (const message of watch.appended) if (!watch.gone.has(message.id)) this.place(message);
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
  letGo(side) {
    let characters = this.messages.reduce((sum, message) => sum + (message.text?.length ?? 0) + 400, 0);
    while (this.messages.length > 2 * PAGE && (this.messages.length > KEPT || characters > KEPT_CHARACTERS)) {
      const message = side === "newer" ? this.messages.pop() : this.messages.shift();
      characters -= (message.text?.length ?? 0) + 400;
      this.byId.delete(message.id);
      this[side] = true;
    }
  }

  // Events. An event may repeat a change that a page already contains.

  apply(name, data) {
    this[`on_${name}`]?.(data);
  }

  on_appended({ messages, removed_ids: removed = [] }) {
    const gone = this.drop(removed);
    for (const message of messages) {
      for (const watch of this.watches) {
        watch.gone.delete(message.id);
        watch.appended.push(message);
      }
    }
    const unknown = messages.filter((message) => !this.byId.has(message.id));
    const added = unknown.filter((message) => this.place(message));
    if (this.newer) this.missed += unknown.length - added.length;
    this.onChange({ kind: "appended", added: unknown, removed: gone });
  }

  on_updated({ message }) {
    for (const watch of this.watches) watch.changed.set(message.id, message);
    if (!this.byId.has(message.id)) return;
    this.messages[this.messages.indexOf(this.byId.get(message.id))] = message;
    this.byId.set(message.id, message);
    this.onChange({ kind: "updated", message });
  }

  /** A reply that is being written has grown. `whole`: this is all of it so far. */
  on_grew({ id, delta, whole, parts }) {
    const before = this.byId.get(id);
    if (before?.status !== "streaming") return;
    const grown = whole ? [] : [...before.parts];
    const continues = grown.at(-1)?.type === "text";
    for (const part of parts ?? [{ type: "text", text: continues ? delta : delta.replace(/^\n/, "") }]) {
      const last = grown.at(-1);
      if (part.type === "text" && last?.type === "text") grown.splice(-1, 1, { ...last, text: last.text + part.text });
      else grown.push(part);
    }
    this.on_updated({ message: { ...before, parts: grown, text: whole ? delta : before.text + delta } });
  }

  on_deleted({ ids }) {
    this.onChange({ kind: "deleted", ids, removed: this.drop(ids) });
  }

  on_compacted({ summary, removed_ids: removed, count }) {
    const gone = this.drop(removed ?? this.replacedBy(summary).map((message) => message.id));
    for (const watch of this.watches) {
      watch.summaries.push(summary);
      watch.appended.push(summary);
    }
    this.place(summary);
    this.onChange({ kind: "compacted", removed: gone, summary, count });
  }

  /** Remove the messages that a compaction archived, which the event does not list. */
  replacedBy(summary) {
    return this.messages.filter((message) => replaces(summary, message));
  }

  on_cleared() {
    this.empty("cleared");
  }

  on_gone() {
    this.empty("gone");
  }

  empty(kind) {
    this.generation += 1;
    this.moving = false;
    this.clear();
    this.onChange({ kind });
  }

  on_conversation({ record }) {
    this.info = { ...this.info, ...record };
    this.onChange({ kind: "info" });
  }

  /** Load the full text of a message that was cut. */
  complete(message) {
    const at = this.messages.findIndex((other) => other.id === message.id);
    if (at < 0) return;
    this.messages[at] = message;
    this.byId.set(message.id, message);
  }

  drop(ids) {
    const gone = new Set(ids);
    for (const watch of this.watches) for (const id of gone) watch.gone.add(id);
    const removed = this.messages.filter((message) => gone.has(message.id));
    if (!removed.length) return removed;
    this.messages = this.messages.filter((message) => !gone.has(message.id));
    this.emptied = removed[0].position;
    for (const message of removed) this.byId.delete(message.id);
    return removed;
  }
}
