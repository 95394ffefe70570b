// The fold state of the open conversation, stored apart from the DOM, because rows are removed while scrolling.

import { api } from "./api.js";

export class Desk {
  /** `conversation`; `hold(key)` keeps a row in its place; `redraw(key)`; `rebuild()` after rows were added or removed. */
  constructor({ conversation, prefix, hold, redraw, rebuild }) {
    Object.assign(this, { conversation, prefix, hold, redraw, rebuild });
    this.open = new Map(); // by row and part
    this.summaries = new Map(); // by id: {open, busy, messages, more, error}
    this.counts = new Map(); // by id of a summary: how many messages it replaced, if known
    this.names = new Map(); // of participants, by id
  }

  learn(messages) {
    for (const { participant } of messages) {
      if (participant) this.names.set(participant.id, participant.display_name ?? participant.id);
    }
  }

  /** The state of a foldable part of a row: `{id, open, toggle}`. */
  fold(row, id, message) {
    const key = `${row.key}\n${message.id}\n${id}`;
    const open = this.open.get(key) ?? false;
    return { id: `${message.id}\n${id}`, open, toggle: () => this.set(row, key, !open, message) };
  }

  async set(row, key, open, message) {
    this.open.set(key, open);
    this.hold(row.key);
    this.redraw(row.key);
    const short = [...message.parts, ...(message.sources ?? [])].some((one) => one.cut) || message.sources_cut;
    if (open && short) {
      const whole = await api.message(this.conversation.id, message.id).catch(() => null);
      if (!whole) return;
      this.conversation.complete(whole);
      for (const { messages } of this.summaries.values()) {
        const at = messages?.findIndex((other) => other.id === whole.id) ?? -1;
        if (at >= 0) messages[at] = whole;
      }
      this.hold(row.key);
      this.rebuild();
    }
  }

  /** Unfold all parts that contain one of the words, for a search hit. */
  reveal(row, words) {
    const inside = (value) => {
      const text = (typeof value === "string" ? value : (JSON.stringify(value) ?? "")).toLowerCase();
      return words.some((word) => text.includes(word));
    };
    const unfold = (id, message) => this.open.set(`${row.key}\n${message.id}\n${id}`, true);
    row.message.parts.forEach((part, index) => {
      const results = row.results.get(index) ?? [];
      if (part.type === "text" && part.text.length > 900 && inside(part.text.slice(900)))
        unfold(`${index}`, row.message);
      if (part.type === "reasoning" && inside(part.text)) unfold(`${index}`, row.message);
      if (part.type === "tool_result" && !row.paired.has(index) && inside(part.content))
        unfold(`${index}`, row.message);
      if (part.type === "tool_use" && (inside(part.input) || results.some((result) => inside(result.part.content)))) {
        unfold(`${index}`, row.message);
      }
    });
  }

  /** Unfold all parts of a row, or fold them; false if it has none. */
  toggleAll(row, buttons) {
    if (row.message.is_summary && !row.archived && !row.edge) {
      this.originals(row).toggle();
      return true;
    }
    if (!buttons.length) return false;
    const closed = buttons.filter((button) => button.getAttribute("aria-expanded") === "false");
    const keys = (closed.length ? closed : buttons).map((button) => `${row.key}\n${button.dataset.fold}`);
    for (const key of keys) this.open.set(key, closed.length > 0);
    this.hold(row.key);
    this.redraw(row.key);
    return true;
  }

  /** The state of a summary's original messages. */
  originals(row) {
    const id = row.message.id;
    const one = this.summaries.get(id) ?? { open: false, busy: false, messages: null, more: false, error: null };
    this.summaries.set(id, one);
    return {
      ...one,
      // The count of a compaction counts an earlier summary as one. Loaded originals give the exact number.
      count: (one.messages && !one.more ? one.messages.length : this.counts.get(id)) ?? null,
      toggle: () => this.toggleOriginals(id, row.message.id),
      more: () => this.read(id, one),
    };
  }

  async toggleOriginals(id, key) {
    const one = this.summaries.get(id);
    if (one.busy) return;
    one.open = !one.open;
    this.hold(key);
    this.redraw(key);
    if (one.open && !one.messages) await this.read(id, one);
    this.hold(key);
    this.rebuild();
  }

  /** Load the next page of originals, newest first. */
  async read(id, one) {
    if (one.busy) return;
    one.busy = true;
    one.error = null;
    this.redraw(id);
    try {
      const page = await api.originals(this.conversation.id, id, one.before);
      one.messages = [...page.messages, ...(one.messages ?? [])];
      one.more = Boolean(page.more);
      one.before = page.before;
    } catch (error) {
      one.error = error.message;
      one.open = Boolean(one.messages);
    } finally {
      one.busy = false;
      this.redraw(id);
      this.rebuild();
    }
  }

  /** Originals may be deleted too. */
  forget(ids) {
    for (const one of this.summaries.values()) {
      if (one.messages) one.messages = one.messages.filter((message) => !ids.includes(message.id));
    }
  }

  unfolded() {
    return new Map([...this.summaries].filter(([, one]) => one.open && one.messages));
  }
}
