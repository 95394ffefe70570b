// The fold state of the open conversation, stored apart from the DOM, because rows are removed while scrolling.

import { api } from "./api.js";

export class Folds {
  /** `hold(key)` keeps a row in its place; `redraw(key)`; `rebuild()` after rows were added or removed. */
  constructor({ conversation, prefix, hold, redraw, rebuild }) {
    Object.assign(this, { conversation, prefix, hold, redraw, rebuild });
    this.open = new Map(); // by row and part
    this.completed = new WeakSet(); // messages whose rest was requested
    this.summaries = new Map(); // by id: {open, busy, messages, more, before, error}
    this.counts = new Map(); // by id of a summary: how many messages it replaced, if known
    this.names = new Map(); // of participants, by id
  }

  learn(messages) {
    for (const { participant } of messages) {
      if (participant) this.names.set(participant.id, participant.display_name ?? participant.id);
    }
  }

  /** The state of a foldable part of a row: `{id, open}`. */
  fold(row, id, message) {
    const part = `${message.id}\n${id}`;
    return { id: part, open: this.open.get(`${row.key}\n${part}`) ?? false };
  }

  /** Unfold a part of a row, or fold it. */
  toggle(row, part) {
    const key = `${row.key}\n${part}`;
    const open = !this.open.get(key);
    this.open.set(key, open);
    this.hold(row.key, !open);
    this.redraw(row.key);
    const id = part.slice(0, part.lastIndexOf("\n"));
    const results = [...row.results.values()].flat().map((result) => result.message);
    const message = [row.message, ...results].find((one) => one.id === id);
    const isCut = [...message.parts, ...(message.sources ?? [])].some((one) => one.cut) || message.sources_cut;
    if (open && isCut) this.load(row, message);
  }

  /** Load the rest of an answer: only its beginning came with the page. While it is written, its stream has the rest. */
  complete(row) {
    const { message } = row;
    const isKept = message.role === "user" || message.status === "streaming" || this.completed.has(message);
    if (isKept || !message.parts.some((part) => part.type === "text" && part.cut)) return;
    this.completed.add(message);
    this.load(row, message);
  }

  async load(row, message) {
    const whole = await api.message(this.conversation.id, message.id).catch(() => null);
    if (!whole) return this.completed.delete(message);
    this.conversation.fill(message, whole);
    for (const summary of this.summaries.values()) {
      summary.messages = summary.messages?.map((other) => (other.id === whole.id ? whole : other));
    }
    this.hold(row.key);
    this.rebuild();
  }

  /** Unfold all parts that contain one of the words, for a search hit. */
  reveal(row, words) {
    const contains = (value) => {
      const text = (typeof value === "string" ? value : (JSON.stringify(value) ?? "")).toLowerCase();
      return words.some((word) => text.includes(word));
    };
    row.message.parts.forEach((part, index) => {
      const results = row.results.get(index) ?? [];
      const folded = {
        text: () => contains(part.text.slice(900)), // folded only if a user wrote it
        reasoning: () => contains(part.text),
        tool_result: () => !row.paired.has(index) && contains(part.content),
        tool_use: () => contains(part.input) || results.some((result) => contains(result.part.content)),
      }[part.type];
      if (folded?.()) this.open.set(`${row.key}\n${row.message.id}\n${index}`, true);
    });
  }

  /** Unfold all parts of a row, or fold them; false if it has none. */
  toggleAll(row, buttons) {
    if (row.message.is_summary && !row.archived && !row.edge) {
      this.originals(row).toggle();
      return true;
    }
    const closed = buttons.filter((button) => button.getAttribute("aria-expanded") === "false");
    for (const { dataset } of closed.length ? closed : buttons) this.toggle(row, dataset.fold);
    return buttons.length > 0;
  }

  /** The state of a summary's original messages. */
  originals({ message: { id } }) {
    const state = this.summaries.get(id) ?? { open: false, busy: false, messages: null, more: false, error: null };
    this.summaries.set(id, state);
    return {
      ...state,
      // The count of a compaction counts an earlier summary as one. Loaded originals give the exact number.
      count: (state.messages && !state.more ? state.messages.length : this.counts.get(id)) ?? null,
      toggle: () => this.toggleOriginals(id, state),
      more: () => this.loadOriginals(id, state),
    };
  }

  async toggleOriginals(id, state) {
    if (state.busy) return;
    state.open = !state.open;
    this.hold(id);
    this.redraw(id);
    if (state.open && !state.messages) await this.loadOriginals(id, state);
    this.hold(id);
    this.rebuild();
  }

  /** Load the next page of originals, newest first. */
  async loadOriginals(id, state) {
    if (state.busy) return;
    Object.assign(state, { busy: true, error: null });
    this.redraw(id);
    try {
      const { messages, more, before } = await api.originals(this.conversation.id, id, state.before);
      Object.assign(state, { messages: [...messages, ...(state.messages ?? [])], more, before });
    } catch (error) {
      Object.assign(state, { error: error.message, open: Boolean(state.messages) });
    } finally {
      state.busy = false;
      this.redraw(id);
      this.rebuild();
    }
  }

  /** Originals may be deleted too. */
  forget(ids) {
    for (const summary of this.summaries.values()) {
      summary.messages = summary.messages?.filter((message) => !ids.includes(message.id));
    }
  }

  unfolded() {
    return new Map([...this.summaries].filter(([, summary]) => summary.open && summary.messages));
  }
}
