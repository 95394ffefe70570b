// Creates the element of a timeline row.

import { address } from "./api.js";
import { copying, el, icon } from "./dom.js";
import { author, clock, dayName, duration, exact, initials, number, oneLine, plural, shorten } from "./format.js";
import { prose } from "./markdown.js";
import { attachments, drawPart, sources } from "./parts.js";
import { foldable } from "./prose.js";
import { hashOf } from "./route.js";

/**
 * `desk` has the state apart from the row: `desk.fold(row, id, message)`, the state of a foldable part;
 * `desk.originals(row)`, the state of a summary: `{open, busy, count, error, toggle}`; `desk.names`, the names of
 * participants by id; `desk.prefix`, the beginning of summary texts; `desk.conversation`.
 */
export function drawRow(row, desk) {
  if (row.edge) return drawEdge(row, desk);
  const { message } = row;
  const body = message.is_summary ? summary(row, desk) : spoken(row, desk);
  const who = author(message);
  const article = el(
    "article",
    {
      class: ["row", row.continued && "continued", row.archived && "archived", message.status]
        .filter(Boolean)
        .join(" "),
      tabindex: "-1",
      "aria-label": `${who.name}, ${clock(message.timestamp)}: ${shorten(oneLine(message.text ?? ""), 120)}`,
      data: { id: message.id },
    },
    row.day && el("h2", { class: "day" }, el("span", { text: dayName(row.day) })),
    row.unread && el("p", { class: "unread-line" }, el("span", { text: "New" })),
    body,
  );
  return article;
}

function spoken(row, desk) {
  const { message } = row;
  const who = author(message);
  const fold = (id, owner = message) => desk.fold(row, id, owner);
  const content = message.parts.map((part, index) => drawPart(row, part, index, fold));
  const shown = content.filter(Boolean);
  const chips = attachments(message);
  if (message.status === "streaming") shown.push(el("span", { class: "caret", "aria-hidden": "true" }));
  else if (!shown.length && !chips) shown.push(el("p", { class: "nothing", text: "no text" }));
  if (message.status === "interrupted") shown.push(el("p", { class: "stopped", text: "stopped before its end" }));
  const box = el(
    "div",
    { class: "message", data: { kind: who.kind, role: message.role } },
    row.continued ? el("div", { class: "gutter" }, time(message)) : avatar(who),
    el(
      "div",
      { class: "body" },
      !row.continued && heading(row, who, desk),
      ...shown,
      chips,
      sources(message, fold),
      actions(message, desk),
    ),
  );
  box.style.setProperty("--hue", who.hue);
  return box;
}

/** Copy the text or a link, or open the message as JSON; shown while the row has the pointer or the focus. */
function actions(message, desk) {
  const { id } = desk.conversation;
  const link = new URL(hashOf({ conversation: id, message: message.id }), location.href).href;
  const href = address(["conversations", id, "messages", message.id]);
  const json = el("a", { class: "button quiet", href, target: "_blank", rel: "noopener", text: "JSON" });
  return el("div", { class: "message-actions" }, message.text && copying(message.text), copying(link, "Link"), json);
}

export function avatar(who) {
  const box = el("span", {
    class: "avatar",
    "aria-hidden": "true",
    text: initials(who.name),
    data: { kind: who.kind },
  });
  box.style.setProperty("--hue", who.hue);
  return box;
}

function heading(row, who, desk) {
  const { message } = row;
  const { metadata = {} } = message;
  const channel = typeof metadata.channel_name === "string" ? metadata.channel_name : message.scope;
  const mentions = Array.isArray(metadata.mentions) ? metadata.mentions.filter((one) => typeof one === "string") : [];
  const to = mentions.slice(0, 4).map((id) => desk.names.get(id) ?? id);
  return el(
    "header",
    { class: "heading" },
    el("bdi", { class: "name", text: shorten(who.name, 60), title: shorten(who.name, 400) }),
    el("span", { class: "role", text: role(message, who) }),
    el("span", { class: "reply", text: replyFacts(message, row.after) }),
    to.length > 0 && el("span", { class: "to" }, "to ", el("bdi", { text: shorten(to.join(", "), 80) })),
    channel && el("bdi", { class: "channel", text: shorten(channel, 40) }),
    time(message),
  );
}

/** The kind of the participant, and the role unless it follows from the kind. */
function role(message, who) {
  if (!message.participant) return "";
  const usual = { user: "user", agent: "assistant", system: "system" }[who.kind];
  return message.role === usual ? who.kind : `${who.kind}, as ${message.role}`;
}

/** The model, tokens, cost and time of a reply, where they are known. `after`: the time of the message before. */
function replyFacts({ role, reply = {}, timestamp }, after = null) {
  const { model, input_tokens: read, output_tokens: written, cost } = reply;
  const tokens = [read, written].filter(Number.isFinite).map(number).join(" → ");
  const price = Number.isFinite(cost) && `$${Number(cost.toPrecision(2))}`;
  const took = role === "assistant" && after && duration(after, timestamp);
  return [model && shorten(model, 40), tokens && `${tokens} tokens`, price, took && `after ${took}`]
    .filter(Boolean)
    .join(" · ");
}

function time(message) {
  const facts = [
    exact(message.timestamp),
    replyFacts(message),
    `id ${message.id}`,
    message.trace_id && `trace ${message.trace_id}`,
  ];
  return el("time", {
    datetime: message.timestamp,
    title: shorten(facts.filter(Boolean).join("\n"), 400),
    text: clock(message.timestamp),
  });
}

function summary(row, desk) {
  const { message } = row;
  const originals = desk.originals(row);
  const { open, toggle } = desk.fold(row, "text", message);
  const texts = message.parts.filter((part) => part.type === "text");
  const cut = texts.find((part) => part.cut)?.cut;
  const body = withoutFrame(texts.map((part) => part.text).join("\n"), desk.prefix);
  const label = originals.busy
    ? "Reading the originals …"
    : originals.open
      ? "Hide the originals"
      : "Show the originals";
  const button = el("button", {
    type: "button",
    class: "button quiet",
    "aria-expanded": String(originals.open),
    "aria-busy": String(originals.busy),
    text: label,
    data: { fold: "originals" },
    on: { click: originals.toggle },
  });
  return el(
    "div",
    { class: "summary" },
    el(
      "header",
      { class: "summary-head" },
      icon("fold"),
      el("span", { class: "summary-title", text: "Summary of earlier messages" }),
      originals.count && el("span", { class: "role", text: plural(originals.count, "message") }),
      time(message),
    ),
    ...(originals.open && originals.messages
      ? []
      : foldable(body, { id: "text", open, toggle, cut, total: cut }, prose)),
    !row.archived &&
      el("footer", {}, button, originals.error && el("span", { class: "failed", text: originals.error })),
  );
}

/** The text of a summary without its prefix, because the heading already says that it is a summary. */
function withoutFrame(text, prefix) {
  if (!prefix || !text.startsWith(prefix)) return text;
  return text.slice(prefix.length).replace(/\]$/, "");
}

/** The rows before and after the originals of a summary. */
function drawEdge(row, desk) {
  const originals = desk.originals(row);
  const start = row.edge === "start";
  const text = start
    ? "Earlier originals are not shown."
    : row.count
      ? "End of the originals."
      : "The originals were deleted.";
  const button = el("button", {
    type: "button",
    class: "button quiet",
    text: start ? "Show more" : "Hide them",
    "aria-busy": String(originals.busy),
    on: { click: start ? originals.more : originals.toggle },
  });
  return el(
    "article",
    { class: "row archived edge", tabindex: "-1", "aria-label": text },
    el("p", {}, text, " ", button),
  );
}

/** The estimated height of a row before it is drawn. `width`: of its text, in pixels. */
export function estimateRow(row, width) {
  if (row.edge) return 44;
  const { message } = row;
  let height = row.continued ? 8 : 46;
  if (row.day) height += 52;
  if (row.unread) height += 26;
  message.parts.forEach((part, index) => {
    if (part.type === "text") {
      const lines = Math.ceil((part.text.length * 7.4) / width) + part.text.split("\n", 20).length - 1;
      height += Math.min(lines, 20) * 23 + 4;
    } else if (!row.paired.has(index)) height += 42;
  });
  return height + (message.sources?.length ? 42 : 0) + (message.is_summary ? 70 : 0);
}
