// Server-sent events over fetch. Unlike EventSource, it reports why a connection failed, retries after any failure,
// detects a dead connection, and resumes after the last handled event.

import { address, failure } from "./api.js";

// Milliseconds; the server sends at least every 800.
const QUIET = 1_900; // then the page says so
const SILENCE = 8_000; // then it connects again
const FIRST_WAIT = 250;
const LONGEST_WAIT = 4_000;

/** Parses text in pieces of any size, and calls `onEvent({name, data, id})` for each complete event. */
export class EventParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
  }

  /** Lines end as this server ends them, and the data of an event are one line. */
  push(text) {
    const events = (this.rest + text).split("\n\n");
    this.rest = events.pop();
    for (const event of events) {
      const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      if (fields.data) this.onEvent({ name: fields.event ?? "message", id: fields.id ?? null, data: fields.data });
    }
  }
}

/**
 * A stream that stays open until `close()`.
 * `snapshot()` loads the current state and returns the cursor to follow from. It is called first, unless there is a
 * `cursor`, and again whenever the server cannot send the missed events. Without `snapshot`, events start now.
 * `onEvent(name, data)` gets each event once, and may return "reset" to request a new snapshot. `onState(state, error)`:
 * "opening", "open", "silent" (nothing arrives), "waiting" (before a retry), or "refused" (a permanent error; it retries
 * rarely).
 */
export class Stream {
  constructor({ url, snapshot = null, cursor = null, onEvent, onState }) {
    Object.assign(this, { url, snapshot, cursor, onEvent, onState });
    this.failures = 0;
    this.closed = false;
    this.heard = this.ticked = performance.now();
    this.silent = this.reading = false;
    this.watching = setInterval(() => this.watch(), 250);
    this.nudge = () => {
      if (document.visibilityState !== "hidden") this.hurry();
    };
    this.hurry = () => {};
    addEventListener("online", this.nudge);
    document.addEventListener("visibilitychange", this.nudge);
    this.run();
  }

  close() {
    this.closed = true;
    clearInterval(this.watching);
    removeEventListener("online", this.nudge);
    document.removeEventListener("visibilitychange", this.nudge);
    this.hurry();
    this.abort?.abort();
  }

  async run() {
    while (!this.closed) {
      this.onState("opening");
      let error = null;
      try {
        if (this.snapshot && this.cursor === null) this.cursor = await this.snapshot();
        if (!this.closed) await this.once();
      } catch (caught) {
        error = caught;
      }
      if (this.closed) return;
      if (error?.reset || error?.status === 400) {
        this.cursor = null;
        if (error.reset) continue;
      }
      const refused = [401, 403, 404].includes(error?.status);
      this.onState(refused ? "refused" : "waiting", error);
      const longest = refused ? 30_000 : Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.failures++);
      await this.pause(longest * (0.5 + Math.random() / 2));
    }
  }

  async once() {
    this.abort = new AbortController();
    const { signal } = this.abort;
    this.hear();
    this.reading = true;
    try {
      const headers = { Accept: "text/event-stream" };
      if (this.cursor) headers["Last-Event-ID"] = this.cursor;
      const response = await fetch(this.url, { headers, credentials: "same-origin", cache: "no-store", signal });
      if (!response.ok) throw await failure(response);
      this.onState("open");
      const parser = new EventParser((event) => this.handle(event));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || this.closed) return;
        this.hear();
        this.failures = 0;
        parser.push(value);
      }
    } finally {
      this.reading = this.silent = false;
      this.abort.abort();
    }
  }

  hear() {
    this.heard = performance.now();
    if (this.silent) this.onState("open");
    this.silent = false;
  }

  /** Notice a connection on which nothing arrives. */
  watch() {
    const now = performance.now();
    if (now - this.ticked > 3_000) this.heard = now; // the page was busy or suspended: it reads first what has arrived
    this.ticked = now;
    if (!this.reading) return;
    const silence = now - this.heard;
    if (silence > SILENCE) this.abort.abort();
    else if (silence > QUIET && !this.silent && !document.hidden) {
      this.silent = true;
      this.onState("silent");
    }
  }

  handle({ name, id, data }) {
    if (this.closed) return;
    const outcome = name === "reset" ? "reset" : this.onEvent(name, JSON.parse(data));
    if (outcome === "reset" && this.snapshot)
      throw Object.assign(new Error("a new snapshot is needed"), { reset: true });
    if (id) this.cursor = id; // set after handling, so that an unhandled event is sent again
  }

  /** Start again with a new snapshot. */
  restart() {
    this.cursor = null;
    this.abort?.abort();
    this.hurry();
  }

  pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.hurry = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/**
 * The stream of all conversations, shared by all tabs of this page: browsers allow few connections to a server, and each
 * tab needs one for its open conversation. One tab, the leader, holds the stream and forwards its events.
 * `onEvent(name, data)`: after "hello", read the list; later changes follow as events. `onState`: see Stream.
 */
export async function openListStream({ onEvent, onState }) {
  const url = address(["events"]).href;
  const listen = (forward) =>
    new Stream({
      url,
      onEvent: (name, data) => {
        onEvent(name, data);
        forward({ name, data });
      },
      onState: (state, error) => {
        onState(state, error);
        forward({ state });
      },
    });
  // Both APIs need https or a loopback address. Elsewhere each tab has its own stream.
  if (!navigator.locks || !globalThis.BroadcastChannel) {
    listen(() => {});
    return;
  }
  const channel = new BroadcastChannel(url);
  channel.onmessage = ({ data: { state, name, data } }) => (state ? onState(state, null) : onEvent(name, data));
  const { held } = await navigator.locks.query();
  if (held.some((lock) => lock.name === url)) onEvent("hello", {}); // the leader's own "hello" is long past
  // Held until the tab is closed; browsers do not suspend a tab that holds a lock.
  navigator.locks.request(url, () => {
    listen((event) => channel.postMessage(event));
    return new Promise(() => {});
  });
}
