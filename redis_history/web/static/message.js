// Creates the element of a timeline row.

import { address, hashOf } from "./api.js";
import { become, button, copyImageButton, el, icon, imageButton } from "./dom.js";
import { author, brief, clock, costOf, dayName, duration, exact, initials, number, plural, shorten } from "./format.js";
import { prose } from "./markdown.js";
import { attachments, drawPart, sources } from "./parts.js";
import { foldable } from "./prose.js";
import { sameRow } from "./rows.js";

/** `folds`: the state of foldable parts, which the row does not have. */
export function drawRow(row, folds) {
  if (row.edge) return drawEdge(row, folds);
  const { message } = row;
  const classes = ["article.row", row.continued && "continued", row.archived && "archived", message.status];
  const label = `${author(message).name}, ${clock(message.timestamp)}: ${brief(message.text ?? "", 120)}`;
  const drawings = new Map();
  const element = el(
    classes.filter(Boolean).join("."),
    { tabindex: "-1", "aria-label": label, data: { id: message.id } },
    row.day && el("h2.day", el("span", dayName(row.day))),
    row.unread && el("p.unread-line", el("span", "New")),
    message.is_summary ? drawSummary(row, folds) : drawMessage(row, folds, drawings),
  );
  element.drawings = drawings;
  return element;
}

/** Change the element of a row into a newly drawn one. */
export function redrawRow(element, next) {
  become(element, next);
  element.drawings = next.drawings;
  for (const [index, drawing] of next.drawings ?? [])
    drawing.root = element.querySelector(`[data-part="${index}"]`) ?? drawing.root;
}

/** Show the growth of a reply; false if the row has other changes, and is to be drawn again. */
export function growRow(element, row, before) {
  const [now, was] = [row.message, before.message];
  if (now?.status !== "streaming" || now.parts.length !== was.parts.length) return false;
  const isSame = (name) => ["parts", "text"].includes(name) || now[name] === was[name];
  if (!Object.keys(now).every(isSame) || !sameRow({ ...row, message: was }, before)) return false;
  const grown = now.parts.flatMap((part, index) => (part === was.parts[index] ? [] : [index]));
  if (!grown.every((index) => now.parts[index].type === "text" && element.drawings.has(index))) return false;
  for (const index of grown) element.drawings.get(index).set(now.parts[index].text);
  return true;
}

function drawMessage(row, folds, drawings) {
  const { message } = row;
  const who = author(message);
  const fold = (id, owner = message) => folds.fold(row, id, owner);
  const shown = message.parts
    .map((part, index) => drawPart(row, part, index, { fold, drawings, conversation: folds.conversation.id }))
    .filter(Boolean);
  const chips = attachments(message, folds.conversation.id);
  if (message.status === "streaming") shown.push(el("span.caret", { "aria-hidden": "true" }));
  else if (!shown.length && !chips) shown.push(el("p.nothing", "no text"));
  if (message.metadata?.pinned) shown.push(el("p.stopped", "pinned"));
  if (message.status === "interrupted") shown.push(el("p.stopped", "stopped before its end"));
  const head = !row.continued && heading(row, who, folds);
  const box = el(
    "div.message",
    { data: { kind: who.kind, role: message.role } },
    row.continued ? el("div.gutter", time(message)) : avatar(who),
    el("div.body", head, ...shown, chips, sources(message, fold)),
    actions(row, folds.conversation.id),
  );
  box.style.setProperty("--hue", who.hue);
  return box;
}

/** Buttons of a message, shown while the row has the pointer or the focus, to those who have the right. */
function actions({ message, archived }, conversation) {
  const link = new URL(hashOf({ conversation, message: message.id }), location.href).href;
  const href = address(["conversations", conversation, "messages", message.id]);
  const ends = message.status !== "streaming";
  const texts = message.parts.filter((part) => part.type === "text").length;
  const json = { href, target: "_blank", rel: "noopener", "aria-label": "JSON", title: "JSON" };
  return el(
    "div.message-actions",
    message.text && copyImageButton("copy", "Copy", textOf),
    copyImageButton("link", "Link", () => link),
    el("a.icon-button", json, icon("code")),
    change("branch", "Branch", "fork"),
    ends && change("pin", message.metadata?.pinned ? "Unpin" : "Pin", "pin"),
    ends && texts === 1 && change("pencil", "Edit", "edit"),
    message.role === "user" && !archived && change("retry", "Ask again", "delete"),
    ends && change("trash", "Delete message", "delete"),
  );
}

const change = (image, name, right) => imageButton(image, name, null, { data: { change: name, right } });

const textOf = (button) => button.closest(".row").row.message.text;

export function avatar(who) {
  const box = el("span.avatar", { "aria-hidden": "true", data: { kind: who.kind } }, initials(who.name));
  box.style.setProperty("--hue", who.hue);
  return box;
}

function heading({ message, after }, who, folds) {
  const { metadata = {} } = message;
  const channel = typeof metadata.channel_name === "string" ? metadata.channel_name : message.scope;
  const mentions = Array.isArray(metadata.mentions) ? metadata.mentions.filter((one) => typeof one === "string") : [];
  const to = mentions.slice(0, 4).map((id) => folds.names.get(id) ?? id);
  return el(
    "header.heading",
    el("bdi.name", { title: shorten(who.name, 400) }, shorten(who.name, 60)),
    el("span.role", role(message, who)),
    el("span.reply", replyFacts(message, after)),
    to.length > 0 && el("span.to", "to ", el("bdi", shorten(to.join(", "), 80))),
    channel && el("bdi.channel", shorten(channel, 40)),
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
function replyFacts({ role, reply = {}, usage, timestamp }, after = null) {
  const { model, input_tokens: read, output_tokens: written } = reply;
  const tokens = [read, written].filter(Number.isFinite).map(number).join(" → ");
  const price = costOf({ ...reply, cached_tokens: usage?.cached_tokens });
  const took = role === "assistant" && after && duration(after, timestamp);
  const facts = [model && shorten(model, 40), tokens && `${tokens} tokens`, price, took && `after ${took}`];
  return facts.filter(Boolean).join(" · ");
}

function time(message) {
  const { timestamp: datetime, id, trace_id: trace } = message;
  const facts = [exact(datetime), replyFacts(message), `id ${id}`, trace && `trace ${trace}`].filter(Boolean);
  return el("time", { datetime, title: shorten(facts.join("\n"), 400) }, clock(datetime));
}

function drawSummary(row, folds) {
  const { message } = row;
  const { open, busy, count, error, messages, toggle } = folds.originals(row);
  const texts = message.parts.filter((part) => part.type === "text");
  const cut = texts.find((part) => part.cut)?.cut;
  const text = withoutPrefix(texts.map((part) => part.text).join("\n"), folds.prefix);
  const label = busy ? "Loading the originals …" : open ? "Hide the originals" : "Show the originals";
  const state = { "aria-expanded": String(open), "aria-busy": String(busy), data: { fold: "originals" } };
  const title = el("span.summary-title", "Summary of earlier messages");
  return el(
    "div.summary",
    el("header.summary-head", icon("fold"), title, count && el("span.role", plural(count, "message")), time(message)),
    ...(open && messages ? [] : foldable(text, { ...folds.fold(row, "text", message), cut }, prose)),
    !row.archived && el("footer", button(label, toggle, state), error && el("span.failed", error)),
  );
}

/** The text of a summary without its prefix, because the heading already says that it is a summary. */
const withoutPrefix = (text, prefix) =>
  prefix && text.startsWith(prefix) ? text.slice(prefix.length).replace(/\]$/, "") : text;

/** The rows before and after the originals of a summary. */
function drawEdge({ message, edge, count }, folds) {
  const originals = folds.originals({ message });
  const end = count ? "End of the originals." : "The originals were deleted.";
  const text = edge === "start" ? "Earlier originals are not shown." : end;
  const [label, action] = edge === "start" ? ["Show more", originals.more] : ["Hide them", originals.toggle];
  const more = button(label, action, { "aria-busy": String(originals.busy) });
  return el("article.row.archived.edge", { tabindex: "-1", "aria-label": text }, el("p", text, " ", more));
}

/** The estimated height of a row before it is drawn. `width`: of its text, in pixels. */
export function estimateRow(row, width) {
  if (row.edge) return 44;
  const { message } = row;
  let height = (row.continued ? 8 : 46) + (row.day ? 52 : 0) + (row.unread ? 26 : 0);
  message.parts.forEach((part, index) => {
    if (part.type === "text") {
      const lines = Math.ceil((part.text.length * 7.4) / width) + part.text.split("\n", 20).length - 1;
      height += (message.role === "user" ? Math.min(lines, 20) : lines) * 23 + 4;
    } else if (!row.paired.has(index)) height += 42;
  });
  return height + (message.sources?.length ? 42 : 0) + (message.is_summary ? 70 : 0);
}
