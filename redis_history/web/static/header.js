// The header of the timeline, with the conversation's facts and the connection state; and who is writing, below.

import { byId, el, setText } from "./dom.js";
import { author, brief, clock, compact, days, exact, plural, shorten, titleOf } from "./format.js";
import { ownerLink, usedText } from "./usage.js";

const PATIENCE = 900; // milliseconds; shorter interruptions are not shown
const MOST_WRITERS = 3;

const STATES = {
  opening: "Connecting",
  open: "Live",
  silent: "No signal",
  waiting: "Reconnecting",
  refused: "Not connected",
};
const NOTES = {
  gone: "This conversation was deleted. If it is created again, it appears here.",
  cleared: "All messages of this conversation were removed.",
  message_gone: "That message does not exist any more.",
};
const LATER = "New messages appear when it is back.";
// By navigator.onLine
const SILENT = {
  true: "Nothing arrives from the server, or the network is interrupted.",
  false: "This device is offline.",
};
const GONE = { true: "The server cannot be reached.", false: "This device is offline." };
const MISSING = "This conversation does not exist. If it is created, it appears here.";

export class Header {
  constructor() {
    this.title = byId("title");
    this.facts = byId("facts");
    this.light = byId("link");
    this.banner = byId("banner");
  }

  open(id) {
    this.note = this.trouble = null;
    this.missing = false;
    clearTimeout(this.timer);
    this.setState("opening");
    this.info({ id });
    this.facts.replaceChildren();
    this.showBanner();
  }

  info(info) {
    setText(this.title, brief(titleOf(info), 300) || "(blank)");
    this.title.title = shorten(titleOf(info), 1000);
    if (info.message_count === undefined) return;
    this.missing = false;
    this.showBanner();
    const tokens = info.estimated_tokens && `≈ ${compact(info.estimated_tokens)} tokens`;
    const counts = [plural(info.message_count, "message"), tokens, days(info.first_message_at, info.last_message_at)];
    const owner = info.user_id ?? "";
    const mayRead = byId("app").dataset.rights?.split(" ").includes("usage");
    const facts = [
      el("span", counts.filter(Boolean).join(" · ")),
      info.agent_name && el("bdi", shorten(info.agent_name, 60)),
      owner !== "" && ownerLink(owner, mayRead),
      info.usage && el("span", usedText(info.usage)),
      info.title && el("bdi.id", { title: "the id of the conversation" }, shorten(info.id, 80)),
    ];
    this.facts.replaceChildren(...joined(facts.filter(Boolean)));
    this.facts.title = `created ${exact(info.created_at)}, last changed ${exact(info.updated_at)}`;
  }

  /** The conversation does not exist: show only its id. */
  forget() {
    this.facts.replaceChildren();
    this.facts.title = "";
    this.missing = true;
    this.showBanner();
  }

  /** Show the state of the stream, except for short interruptions. */
  link(state, error = null) {
    if (state === "opening" && this.state !== "opening") return;
    clearTimeout(this.timer);
    const show = () => {
      this.setState(state);
      this.trouble = troubleOf(state, error);
      this.showBanner();
    };
    const isShort = state === "waiting" && this.state === "open" && !error?.away;
    if (isShort) this.timer = setTimeout(show, PATIENCE);
    else show();
  }

  setState(state) {
    this.state = this.light.dataset.state = state;
    setText(this.light.querySelector(".link-text"), STATES[state]);
    setConnected(state === "open");
  }

  /** Show a text, or the note of a change. */
  say(what) {
    this.note = NOTES[what] ?? null;
    this.showBanner();
  }

  complain(text) {
    this.note = text;
    this.showBanner();
  }

  showBanner() {
    const text = this.trouble ?? this.note ?? (this.missing ? MISSING : "");
    this.banner.hidden = !text;
    setText(this.banner, text);
  }
}

/** What to say about the state of a stream; null if it is open. */
export function troubleOf(state, error) {
  if (state === "silent") return `${SILENT[navigator.onLine]} ${LATER}`;
  if (state === "open" || !error) return null;
  if (error.away || error.code === "no_server") return `The store cannot be reached: Redis does not answer. ${LATER}`;
  if (error.status === 404) return MISSING;
  if (error.status === 401) return "Access has expired: sign in again.";
  if (error.status === 403) return error.message;
  return error.status ? `${error.message} Trying again.` : `${GONE[navigator.onLine]} ${LATER}`;
}

const joined = (groups) => groups.flatMap((group, at) => (at ? [" · ", group] : [group])).flat();

let known = [[], null, []];
let connected = false;

/** Whether the page knows what happens now. */
function setConnected(isConnected) {
  connected = isConnected;
  showActivity(...known);
}

/** Show who works, who waits for that, who else is writing, and what is owed. `run`: the active run, or null. */
export function showActivity(rows, run, turns = []) {
  known = [rows, run, turns];
  const running = connected ? run : null;
  const texts = running ? runTexts(running) : [];
  const names = connected ? rows.filter(({ edge, message }) => !edge && message.status === "streaming") : [];
  const writers = new Set(names.map(({ message }) => author(message).name));
  writers.delete(running?.agent_name);
  texts.push(...[...writers].slice(0, MOST_WRITERS).map((name) => [isolated(name), " is writing"]));
  const open = connected ? turns.filter(({ status }) => status !== "running") : [];
  texts.push(...open.map(turnText));
  if (writers.size > MOST_WRITERS) texts.push([`${writers.size - MOST_WRITERS} more`]);
  const line = el("span", ...joined(texts));
  const shown = byId("activity-text");
  if (line.textContent !== shown.textContent) shown.replaceChildren(line);
  byId("activity").classList.toggle("active", texts.length > 0);
  byId("stop").hidden = running?.status !== "active";
  byId("retry").hidden = !open.some(({ status }) => status !== "owed");
  byId("drop").hidden = !open.length;
}

// Isolated, so that a user-chosen name cannot change the direction of the text around it.
const isolated = (name) => el("bdi", shorten(name, 40));

function turnText({ agent_name: agent, status, asked_at: since, due_at: due, error }) {
  const who = agent ? isolated(agent) : "The agent";
  if (status === "waiting") return [who, " waits for a decision"];
  if (status === "parked") return [who, ` has failed: ${shorten(error ?? "", 60)}`];
  if (error) return [who, ` has failed (${shorten(error, 60)}), and tries again at ${clock(due)}`];
  return [who, ` owes an answer since ${clock(since)}`];
}

function runTexts({ agent_name: agent, status, started_at: since, waiting }) {
  const what = status === "stopping" ? " was asked to stop" : ` is working since ${clock(since)}`;
  const next = waiting.map((one) => [isolated(one.agent_name ?? "another agent"), ` waits since ${clock(one.since)}`]);
  if (next.length > 1) next.splice(0, next.length, [`${next.length} agents wait`]);
  return [[agent ? isolated(agent) : "An agent", what], ...next];
}
