// Shows agents that appended recently, and agents that wait for a tool. The page cannot know when people are typing.

import { byId, el } from "./dom.js";
import { author, shorten } from "./format.js";
import { waitingCalls } from "./rows.js";

const WRITES = 10_000; // milliseconds after an append during which its author counts as writing
const WAITS = 10 * 60_000; // milliseconds after which a call without a result no longer counts

/** A user-chosen name, isolated so that it cannot change the direction of the text around it. */
const theirs = (name) => el("bdi", { text: shorten(name, 40) });

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

  /** Handle new messages. */
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
      if (now - Date.parse(message.timestamp) < WAITS) doing.set(author(message).name, ["is running", part.name]);
    }
    for (const [key, { name, until }] of this.recent) {
      if (now >= until) this.recent.delete(key);
      else if (!doing.has(name)) doing.set(name, ["is writing"]);
    }
    const state = JSON.stringify([...doing]);
    if (state !== this.told) {
      this.told = state;
      const told = [...doing]
        .slice(0, 3)
        .map(([name, [verb, tool]]) => [theirs(name), ` ${verb}`, ...(tool ? [" ", theirs(tool)] : [])]);
      if (doing.size > 3) told.push([`${doing.size - 3} more`]);
      this.text.replaceChildren(...told.flatMap((one, at) => (at ? [" · ", ...one] : one)));
    }
    this.box.classList.toggle("active", doing.size > 0);
    if (doing.size) this.timer = setTimeout(() => this.show(), 1000);
  }
}
