// Stores the number of seen messages of each conversation in the browser. Without storage, it lasts as long as the page.

const KEPT = 2000; // conversations

export class Unread {
  constructor(name) {
    this.key = `redis-history:seen:${name}`;
    this.seen = new Map();
    this.started = Date.now();
    this.first = true; // the first visit, until the list is loaded
    this.timer = null;
    try {
      const stored = JSON.parse(localStorage.getItem(this.key) ?? "null");
      if (stored) {
        this.first = false;
        this.started = stored.started;
        this.seen = new Map(stored.seen);
      }
    } catch {
      // storage is disabled or invalid: as on a first visit
    }
    addEventListener("pagehide", () => this.write());
    // Another tab of this page has updated the storage.
    addEventListener("storage", (event) => {
      if (event.key !== this.key || !event.newValue) return;
      this.seen = new Map(JSON.parse(event.newValue).seen);
      this.onChange?.();
    });
  }

  /** The number of unseen messages of a conversation. Messages from before the first visit count as seen. */
  count(conversation) {
    const seen = this.seen.get(conversation.id);
    if (seen !== undefined) {
      if (conversation.message_count < seen) this.see(conversation.id, conversation.message_count);
      return Math.max(0, conversation.message_count - seen);
    }
    return Date.parse(conversation.created_at) >= this.started ? conversation.message_count : 0;
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
    if (this.seen.get(id) === count) return false;
    this.seen.delete(id); // keep the latest at the end
    this.seen.set(id, count);
    this.save();
    return true;
  }

  save() {
    this.timer ??= setTimeout(() => this.write(), 300);
  }

  write() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.first) return; // nothing to store yet
    try {
      localStorage.setItem(this.key, JSON.stringify({ started: this.started, seen: [...this.seen].slice(-KEPT) }));
    } catch {
      // storage is full or disabled
    }
  }
}
