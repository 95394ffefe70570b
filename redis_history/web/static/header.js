// The header of the timeline: the conversation's title and facts, and the connection state.

import { byId, el, setText } from "./dom.js";
import { compact, days, exact, oneLine, plural, shorten } from "./format.js";

const PATIENCE = 900; // milliseconds; shorter interruptions are not shown

const STATES = {
  opening: "Connecting",
  open: "Live",
  waiting: "Reconnecting",
  refused: "Not connected",
};

const SAID = {
  gone: "This conversation was deleted. If it is created again, it appears here.",
  cleared: "All messages of this conversation were removed.",
  message_gone: "That message does not exist any more.",
};

const MISSING = "This conversation does not exist. If it is created, it appears here.";

export class Header {
  constructor() {
    this.title = byId("title");
    this.facts = byId("facts");
    this.light = byId("link");
    this.banner = byId("banner");
  }

  begin(id) {
    this.id = id;
    this.facts.replaceChildren();
    this.said = null;
    this.trouble = null;
    this.missing = false;
    clearTimeout(this.timer);
    this.state("opening");
    this.info({ id });
    this.showBanner();
  }

  info(info) {
    const title = info.title || info.label || info.id;
    setText(this.title, shorten(oneLine(title) || "(blank)", 300));
    this.title.title = shorten(title, 1000);
    if (info.message_count === undefined) return;
    this.missing = false;
    this.showBanner();
    const told = [plural(info.message_count, "message")];
    if (info.tokens) told.push(`${compact(info.tokens)} tokens`);
    const dates = days(info.first_message_at, info.last_message_at);
    if (dates) told.push(dates);
    const facts = [el("span", { text: told.join(" · ") })];
    if (info.agent_name) facts.push(el("bdi", { text: shorten(info.agent_name, 60) }));
    const owner = String(info.user_id ?? "");
    if (owner) facts.push(el("bdi", { text: `for ${shorten(owner, 60)}` }));
    if (info.title)
      facts.push(el("bdi", { class: "id", text: shorten(info.id, 80), title: "the id of the conversation" }));
    this.facts.replaceChildren(...facts.flatMap((fact, at) => (at ? [" · ", fact] : [fact])));
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
    if (state === "opening" && this.shown !== "opening") return;
    clearTimeout(this.timer);
    const show = () => {
      this.state(state);
      this.trouble = troubleOf(state, error);
      this.showBanner();
    };
    if (state === "waiting") this.timer = setTimeout(show, this.shown === "waiting" ? 0 : PATIENCE);
    else show();
  }

  state(state) {
    this.shown = state;
    this.light.dataset.state = state;
    setText(this.light.querySelector(".link-text"), STATES[state]);
  }

  say(what) {
    this.complain(SAID[what] ?? null);
  }

  complain(text) {
    this.said = text;
    this.showBanner();
  }

  showBanner() {
    const text = this.trouble ?? this.said ?? (this.missing ? MISSING : null);
    this.banner.hidden = !text;
    setText(this.banner, text ?? "");
  }
}

function troubleOf(state, error) {
  if (state === "open" || !error) return null;
  if (error.away) return "The store cannot be reached. New messages appear when it is back.";
  if (error.status === 404) return MISSING;
  if (error.status === 401) return "Access has expired: open the address with the token again.";
  if (error.status === 403) return error.message;
  if (error.status === 0 || !error.status) return "No connection. New messages appear when it is back.";
  return `${error.message} Trying again.`;
}
