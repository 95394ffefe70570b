// The open conversation: its rows, its stream, and navigation.

import { address, api } from "./api.js";
import { compare, Conversation } from "./conversation.js";
import { byId, markWords, oncePerFrame, setText, unmarkWords } from "./dom.js";
import { Folds } from "./folds.js";
import { author, brief, plural } from "./format.js";
import { Header, showActivity } from "./header.js";
import { drawRow, estimateRow, growRow, redrawRow } from "./message.js";
import { buildRows, sameRow } from "./rows.js";
import { Stream } from "./stream.js";
import { VirtualList } from "./virtual.js";

const NEAR = 900; // pixels from an edge of the loaded messages at which the next page is loaded
const HIDDEN = 45_000; // milliseconds after which a hidden page closes its stream

export class Timeline {
  /** `unreadOf(info)`: the number of unseen messages; `announce(texts)`: for screen readers. */
  constructor({ unreadOf, announce, onSeen, onInfo }) {
    Object.assign(this, { unreadOf, announce, onSeen, onInfo });
    this.navigation = 0; // number of the newest navigation; older ones stop
    this.scroller = byId("timeline");
    this.newest = byId("newer");
    this.header = new Header();
    this.conversation = null;
    this.prefix = ""; // the beginning of summary texts
    this.list = new VirtualList(this.scroller, {
      draw: (row) => this.draw(row),
      same: sameRow,
      grow: growRow,
      redraw: redrawRow,
      estimate: (row) => estimateRow(row, Math.max(240, Math.min(540, this.scroller.clientWidth - 90))),
      onScroll: () => this.scrolled(),
    });
    this.show = oncePerFrame(() => this.render());
    this.grown = new Set(); // ids of messages that have only grown since they were shown
    this.showGrown = oncePerFrame(() => this.renderGrown());
    this.scroller.addEventListener("click", ({ target }) => {
      const button = target.closest("[data-fold]");
      const row = button?.closest(".row")?.row; // null if a listener before has removed it
      if (row && button.dataset.fold !== "originals") this.folds.toggle(row, button.dataset.fold);
    });
    this.newest.addEventListener("click", () => {
      this.toEnd();
      this.scroller.focus({ preventScroll: true }); // the button disappears, and would lose the focus
    });
    this.scroller.addEventListener("focusin", (event) => this.focused(event.target));
    document.addEventListener("visibilitychange", () => this.visibility());
  }

  get id() {
    return this.conversation?.id ?? null;
  }

  /** Whether the user sees the end of the conversation. */
  get atEnd() {
    return this.counted && this.conversation !== null && this.list.pinned && !document.hidden;
  }

  open(id) {
    this.close();
    const conversation = new Conversation(id, (change) => conversation === this.conversation && this.changed(change));
    this.conversation = conversation;
    this.folds = new Folds({
      conversation,
      prefix: this.prefix,
      hold: (key, shrinks) => this.list.hold(key, shrinks),
      redraw: (key) => this.list.redraw(key),
      rebuild: () => conversation === this.conversation && this.render(),
    });
    this.home = new Map();
    this.below = 0; // messages that arrived while the user was further up
    this.firstUnread = null;
    this.counted = false; // whether the number of unseen messages is known
    this.opened = false;
    this.target = null;
    this.current = null;
    this.failed = 0;
    showActivity([], null);
    this.header.open(id);
    this.list.reset();
    this.navigation += 1;
    this.listen(null);
  }

  close() {
    this.stream?.close();
    this.conversation?.close();
    this.stream = this.conversation = null;
    clearTimeout(this.hiding);
    unmarkWords();
  }

  listen(cursor) {
    const { conversation } = this;
    this.stream = new Stream({
      url: address(["conversations", conversation.id, "events"]),
      cursor,
      snapshot: () => {
        this.readInfo();
        return conversation.open(this.position());
      },
      onEvent: (name, data) => this.handle(name, data),
      onState: (state, error) => {
        if (conversation !== this.conversation) return;
        if (state === "opening") {
          this.conversation.turns = []; // the stream begins with them, and with the active run
          this.work(null);
        }
        this.header.link(state, error);
      },
    });
  }

  work(run) {
    this.conversation.run = ["active", "stopping"].includes(run?.status) ? run : null;
    this.show();
  }

  owe(turns) {
    this.conversation.turns = turns;
    this.show();
  }

  /** The position in view, or null at the end. */
  position() {
    if (this.list.pinned || !this.list.rows.length) return null;
    const row = this.list.rows[this.list.at(this.scroller.scrollTop)];
    return row.message.position;
  }

  /** Reload after changes that may have been missed: the stream does not contain the conversation's counts. */
  async readInfo() {
    const { conversation } = this;
    if (!conversation) return;
    const info = await api.conversation(conversation.id, conversation.aborter.signal).catch((error) => error);
    if (conversation !== this.conversation) return;
    if (info instanceof Error) {
      if (info.status === 404) this.forget();
      conversation.info ??= {};
    } else this.info(info);
    this.findUnread();
    this.show();
  }

  /** The conversation's record. */
  info(info) {
    this.conversation.info = { ...this.conversation.info, ...info };
    this.header.info({ id: this.id, ...this.conversation.info });
    this.onInfo();
  }

  /** The conversation does not exist, or was deleted. */
  forget() {
    this.conversation.info = null;
    this.header.forget();
    this.onInfo();
  }

  // Changes

  handle(name, data) {
    if (name === "away") this.header.link("waiting", { away: true });
    if (name === "back") this.header.link("open");
    if (name === "restored") return "reset";
    if (name === "run") return this.work(data.run);
    if (name === "turn") return this.owe(data.turns);
    if (name !== "expanded") return this.conversation.apply(name, data);
    this.folds.summaries.delete(data.summary_id);
    this.refresh();
    return null;
  }

  refresh() {
    this.conversation.refresh(this.position()).catch(() => this.stream?.restart());
  }

  changed({ kind, added = [], removed = [], ids = [], summary, count, grown }) {
    if (grown) {
      this.grown.add(grown);
      this.showGrown();
      return;
    }
    if (kind === "opened") {
      this.opened = true;
      this.findUnread();
    }
    if (kind === "appended") this.appended(added);
    if (kind === "compacted") {
      this.folds.counts.set(summary.id, count);
      this.announce([`${plural(count ?? removed.length, "message")} folded into a summary`]);
      // Only the server knows what stays with a pinned message, such as the call of its result.
      if (this.conversation.messages.some((message) => message.metadata?.pinned)) this.refresh();
    }
    if (kind === "deleted") this.folds.forget(ids);
    if (kind === "gone") this.forget();
    if (kind === "info") this.info({});
    else if (!["older", "newer", "opened"].includes(kind)) this.header.say(kind);
    this.show();
  }

  /** Find the first unseen message, once both the messages and their count are known. */
  findUnread() {
    const { messages, info } = this.conversation;
    if (this.counted || !this.opened || !info) return;
    this.counted = true;
    const count = info.message_count === undefined ? 0 : this.unreadOf(info);
    const held = !this.conversation.newer && count < messages.length;
    if (count > 0 && held) this.firstUnread = messages.at(-count).id;
  }

  appended(added) {
    if (!added.length) return;
    this.conversation.trim(this.list.pinned ? "older" : "newer");
    if (!this.atEnd) {
      this.below += added.length;
      if (document.hidden) this.firstUnread ??= added[0].id;
    }
    this.announce(added.map((message) => `${author(message).name}: ${brief(message.text || "calls a tool", 140)}`));
  }

  // Rendering

  render() {
    const { conversation, list, folds } = this;
    if (!conversation) return;
    const { messages } = conversation;
    const { rows, home } = buildRows({
      messages,
      unfolded: folds.unfolded(),
      unread: this.firstUnread,
      run: conversation.run,
    });
    this.home = home;
    folds.learn(messages);
    list.endless = conversation.newer;
    list.pinned &&= !list.endless;
    this.grown.clear();
    list.set(rows);
    this.scroller.ariaBusy = String(Boolean(conversation.loading.older ?? conversation.loading.newer));
    showActivity(rows, conversation.run, conversation.turns);
    this.scrolled();
  }

  /** Show the growth of replies, without looking at the other messages. */
  renderGrown() {
    const { conversation, list } = this;
    for (const id of this.grown) {
      const row = list.rows[list.index.get(this.home.get(id))];
      const message = conversation?.byId.get(id);
      if (row?.message.id === id && message) list.replace({ ...row, message });
    }
    this.grown.clear();
  }

  draw(row) {
    if (!row.edge) this.folds.complete(row);
    const element = drawRow(row, this.folds);
    if (this.target?.key === row.key) {
      element.classList.add("target");
      requestAnimationFrame(() => markWords(element, this.target?.words ?? []));
    }
    return element;
  }

  scrolled() {
    const { conversation, list } = this;
    if (!conversation) return;
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    const left = scrollHeight - scrollTop - clientHeight;
    if (this.atEnd) {
      this.below = 0;
      this.onSeen();
    }
    if (scrollTop < NEAR) this.extend("older");
    if (left < NEAR) this.extend("newer");
    const arrived = Math.max(this.below, conversation.missed);
    this.newest.hidden = list.pinned || (!arrived && !conversation.newer && left < 2 * clientHeight);
    setText(this.newest, arrived ? `${plural(arrived, "new message")} ↓` : "To the newest ↓");
  }

  extend(side) {
    const { conversation } = this;
    if (!conversation[side] || conversation.loading[side] || Date.now() - this.failed < 2000) return;
    conversation.extend(side)?.catch(() => {
      this.failed = Date.now();
      setTimeout(this.show, 2100);
    });
  }

  visibility() {
    clearTimeout(this.hiding);
    if (!this.conversation) return;
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.cursor = this.stream.cursor;
        this.stream.close();
        this.stream = null;
      }, HIDDEN);
    } else {
      if (!this.stream) this.listen(this.cursor);
      this.show();
    }
  }

  // Navigation

  async toEnd() {
    const navigation = ++this.navigation;
    await this.conversation.toNewest();
    if (navigation !== this.navigation) return;
    this.below = 0;
    this.current = null;
    this.list.endless = this.conversation.newer;
    this.list.toEnd();
    this.render();
  }

  async toStart() {
    const navigation = ++this.navigation;
    await this.conversation.toOldest();
    if (navigation !== this.navigation) return;
    this.list.pinned = false;
    this.current = null;
    this.render();
    this.list.toStart();
  }

  /** Focus the next row (1) or the previous row (-1). */
  step(direction) {
    const { list } = this;
    if (!list.rows.length) return;
    const seen = list.seen();
    let at = list.index.get(this.current) ?? -1;
    if (at < 0 || !seen.includes(this.current)) at = list.index.get(direction > 0 ? seen[0] : seen.at(-1)) - direction;
    const key = list.rows[Math.min(list.rows.length - 1, Math.max(0, at + direction))].key;
    this.current = key;
    list.show(key);
    list.drawn.get(key)?.element.focus({ preventScroll: true });
  }

  focused(element) {
    const row = element.closest(".row");
    if (row) this.current = row.dataset.key;
  }

  /** Unfold or fold the parts of the focused row. */
  toggle() {
    const drawn = this.list.drawn.get(this.current);
    if (!drawn) return false;
    return this.folds.toggleAll(drawn.row, [...drawn.element.querySelectorAll("button[data-fold]")]);
  }

  /** Bring a message into view, wherever it is. `position`: if known. Returns false if it does not exist any more. */
  async goTo(id, { position = null, words = [] } = {}) {
    const { conversation } = this;
    const navigation = ++this.navigation;
    const isNewest = () => navigation === this.navigation;
    if (!conversation.byId.has(id)) {
      position ??= (await api.message(conversation.id, id).catch(() => null))?.position ?? null;
      if (!isNewest()) return true;
      if (position === null) return false;
      await conversation.refresh(position);
    }
    if (!isNewest()) return true;
    this.list.pinned = false;
    if (!conversation.byId.has(id) && !(await this.unfoldFor(id, position))) return false;
    if (!isNewest()) return true;
    this.render();
    const key = this.home.get(id);
    const row = this.list.rows[this.list.index.get(key)];
    if (!row) return false;
    this.folds.reveal(row, words);
    this.target = { key, words };
    this.current = key;
    this.list.show(key, 0.25);
    this.list.redraw(key);
    this.list.show(key, 0.25);
    return true;
  }

  /** For an archived message: unfold the summary that replaced it. */
  async unfoldFor(id, position) {
    const { folds, conversation } = this;
    const summary = conversation.messages.find((one) => one.is_summary && compare(one.position, position) >= 0);
    if (!summary) return false;
    const has = () => folds.summaries.get(summary.id)?.messages?.some((message) => message.id === id);
    const originals = folds.originals({ message: summary });
    if (!originals.open) await originals.toggle();
    for (let page = 0; page < 20 && !has() && folds.summaries.get(summary.id).more; page += 1) {
      await folds.originals({ message: summary }).more();
    }
    return Boolean(has());
  }
}
