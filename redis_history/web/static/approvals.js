// The inbox: calls of tools that wait for the consent of a person, in all conversations.

import { api, hashOf } from "./api.js";
import { byId, button, el, setText } from "./dom.js";
import { ago, brief, exact, shorten } from "./format.js";
import { data, pretty } from "./prose.js";

// Milliseconds between two requests after changes: while the inbox is shown, and for the number at its button.
const PACE = 2_000;
const SELDOM = 10_000;

export class Approvals {
  /** `titleOf(id)`: the title of a conversation, if the list has it. */
  constructor({ titleOf }) {
    this.titleOf = titleOf;
    this.items = new Map(); // elements by conversation and call
    this.list = byId("approvals-list");
    this.badge = byId("approvals-count");
    this.waiting = null;
    document.addEventListener("visibilitychange", () => this.stale && this.soon());
  }

  /** Something has changed: load the list again, together with what changes until then. */
  soon() {
    this.stale = document.hidden;
    if (this.stale) return;
    const pace = byId("approvals").hidden ? SELDOM : PACE;
    this.waiting ??= setTimeout(() => this.load(), this.loaded ? pace : 0);
    this.loaded = true;
  }

  async load() {
    clearTimeout(this.waiting);
    this.waiting = null;
    try {
      this.show((await api.approvals()).approvals);
    } catch (error) {
      setText(byId("approvals-note"), error.message);
    }
  }

  show(approvals) {
    const keyed = new Map(approvals.map((one) => [`${one.conversation}\n${one.call}`, one]));
    for (const [key, element] of this.items) {
      if (keyed.has(key)) continue;
      element.remove();
      this.items.delete(key);
    }
    for (const [key, one] of keyed) {
      if (this.items.has(key)) continue; // the reason that is being typed stays
      this.items.set(key, this.draw(one));
    }
    this.list.append(...[...keyed.keys()].map((key) => this.items.get(key)).filter((one) => !one.isConnected));
    this.count();
  }

  count() {
    const { size } = this.items;
    const mine = [...this.items.values()].filter((one) => one.querySelector("form")).length;
    setText(byId("approvals-note"), size ? "" : "No tool call waits for approval.");
    setText(this.badge, mine ? String(mine) : "");
    this.badge.hidden = !mine;
    byId("approvals-link").ariaLabel = mine ? `Approvals, ${mine} waiting` : "Approvals";
  }

  draw(one) {
    const route = { conversation: one.conversation, message: one.message };
    const title = brief(this.titleOf(one.conversation) || one.conversation, 120);
    const facts = [one.agent_name, one.user_id !== null && `for ${one.user_id}`].filter(Boolean);
    const element = el(
      "li.approval",
      el(
        "header.approval-head",
        el("strong.tool-name", shorten(one.tool_name ?? "A tool", 80)),
        el("a.approval-where", { href: hashOf(route) }, el("bdi", title)),
        el("bdi.role", shorten(facts.join(" · "), 80)),
        el("time", { datetime: one.requested_at, title: exact(one.requested_at) }, ago(one.requested_at)),
      ),
      data(one.input_cut ? `${one.input}…` : pretty(one.input)),
      one.may_decide && this.drawForm(one, () => element),
    );
    return element;
  }

  drawForm(one, element) {
    const name = shorten(one.tool_name ?? "A tool", 80);
    const reason = el("input", {
      placeholder: "Reason, which the model reads",
      "aria-label": `Reason: ${name}`,
      maxlength: 1000,
    });
    const decide = (approved) => async () => {
      const buttons = [...element().querySelectorAll("button")];
      for (const each of buttons) each.disabled = true;
      try {
        const done = await api.decide(one.conversation, one.call, approved, reason.value.trim());
        this.decided(one, done, approved, name);
      } catch (error) {
        for (const each of buttons) each.disabled = false;
        setText(byId("approvals-note"), error.message);
      }
    };
    const form = el(
      "form",
      reason,
      button("Deny", decide(false)),
      el("button.button", { type: "button", on: { click: decide(true) } }, "Approve"),
    );
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  /** The first decision stands, and may be that of another. */
  decided(one, done, approved, name) {
    const key = `${one.conversation}\n${one.call}`;
    this.items.get(key)?.remove();
    this.items.delete(key);
    this.count();
    const by = done.by ? ` by ${shorten(done.by, 60)}` : "";
    const what = done.approved ? "approved" : "denied";
    const other = done.approved !== approved;
    setText(byId("approvals-note"), other ? `${name} was already ${what}${by}.` : `${name}: ${what}.`);
    (this.list.querySelector("input") ?? byId("approvals-title")).focus();
  }
}
