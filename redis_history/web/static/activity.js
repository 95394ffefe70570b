// Who is writing: agents that appended a moment ago, and who waits for a tool. Of people nobody can know.

import { byId, setText } from "./dom.js";
import { author, shorten } from "./format.js";
import { waitingCalls } from "./rows.js";

const WRITES = 10_000; // milliseconds for which somebody who wrote is said to be writing
const WAITS = 10 * 60_000; // after so long nobody waits for a tool any more

export class Activity {
  constructor() {
    this.box = byId("activity");
    this.text = byId("activity-text");
    this.begin();
  }

  begin() {
    this.recent = new Map();
    this.rows = [];
    clearTimeout(this.timer);
    this.show();
  }

  /** Messages that came just now. */
  wrote(messages) {
    for (const message of messages) {
      const who = author(message);
      if (who.kind === "agent" && who.key !== "role:tool")
        this.recent.set(who.key, { name: who.name, until: Date.now() + WRITES });
    }
  }

  show(rows = this.rows) {
    this.rows = rows;
    clearTimeout(this.timer);
    const now = Date.now();
    const doing = new Map();
    for (const { message, part } of waitingCalls(rows)) {
      if (now - Date.parse(message.timestamp) < WAITS)
        doing.set(author(message).name, `is running ${shorten(part.name, 40)}`);
    }
    for (const [key, { name, until }] of this.recent) {
      if (now >= until) this.recent.delete(key);
      else if (!doing.has(name)) doing.set(name, "is writing");
    }
    const told = [...doing].slice(0, 3).map(([name, what]) => `${shorten(name, 40)} ${what}`);
    if (doing.size > 3) told.push(`${doing.size - 3} more`);
    setText(this.text, told.join(" · "));
    this.box.classList.toggle("active", told.length > 0);
    if (told.length) this.timer = setTimeout(() => this.show(), 1000);
  }
}
