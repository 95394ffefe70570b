// Stores the number of seen messages of each conversation in the browser. Without storage, it lasts as long as the page.

const KEPT = 2000; // conversations

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
