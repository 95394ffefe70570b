// Creates the elements of message parts. `fold(id)` returns `{id, open, toggle}`, the state of a foldable part.

import { el, icon } from "./dom.js";
import { bytes, duration, exact, oneLine, plural, shorten } from "./format.js";
import { markdown, prose } from "./markdown.js";
import { contentText, data, foldable, pretty } from "./prose.js";

const RECENT = 10 * 60 * 1000;

/** The element of a part; null if it is shown elsewhere. */
export function drawPart(row, part, index, fold) {
  switch (part.type) {
    case "text":
      return part.text ? el("div", {}, ...text(part, fold(`${index}`), row.message)) : null;
    case "reasoning":
      return reasoning(part, fold(`${index}`), fold(`${index}.all`));
    case "tool_use":
      return toolCall(row, part, index, fold);
    case "tool_result":
      return row.paired.has(index) ? null : looseResult(part, index, fold);
    case "attachment":
      return null; // shown together, see attachments()
    default:
      return unknown(part, fold(`${index}`));
  }
}

/** People's own texts are shown as they typed them. */
function text(part, fold, message) {
  const make = message.role === "user" ? prose : markdown;
  return foldable(part.text, { ...fold, cut: part.cut, total: part.cut }, make);
}

/** A head that is always visible, and a body that exists only while unfolded. */
function folding(kind, fold, head, body, label) {
  const button = el(
    "button",
    {
      type: "button",
      class: `${kind}-head fold`,
      "aria-expanded": String(fold.open),
      "aria-label": label,
      dir: "auto",
    },
    ...head,
    icon("chevron"),
  );
  button.dataset.fold = fold.id;
  button.addEventListener("click", fold.toggle);
  return el("div", { class: kind }, button, fold.open && el("div", { class: `${kind}-body` }, ...body()));
}

function reasoning(part, fold, all) {
  const first = shorten(oneLine(part.text ?? ""), 140);
  const head = [icon("thought"), el("span", { class: "reasoning-label", text: "Reasoning" })];
  if (!fold.open) head.push(el("span", { class: "preview", text: first }));
  const body = () => foldable(part.text ?? "", { ...all, cut: part.cut, total: part.cut }, prose);
  return folding("reasoning", fold, head, body, `Reasoning: ${first}`);
}

function toolCall(row, part, index, fold) {
  const results = row.results.get(index) ?? [];
  const failed = results.some((result) => result.part.is_error);
  const waits = !results.length && Date.now() - new Date(row.message.timestamp) < RECENT && !row.archived;
  const state = failed ? "error" : results.length ? "done" : waits ? "waiting" : "none";
  const took = results.length ? duration(row.message.timestamp, results.at(-1).message.timestamp) : "";
  const words = { error: "failed", done: took || "done", waiting: "running", none: "no result" }[state];
  const own = fold(`${index}`);
  const head = [icon("tool"), el("span", { class: "tool-name", text: shorten(part.name, 80) })];
  if (!own.open) head.push(el("span", { class: "preview", text: failed ? failure(results) : argumentsOf(part.input) }));
  head.push(el("span", { class: "tool-state", text: words }));
  const body = () => [
    column("Input", fields(part.input), part, fold(`${index}.input`)),
    ...results.map((result, at) => {
      const title = result.part.is_error ? "Error" : "Result";
      const box = column(
        title,
        contentText(result.part.content),
        result.part,
        fold(`${index}.result${at}`, result.message),
      );
      box.title = exact(result.message.timestamp);
      return box;
    }),
  ];
  const box = folding("tool", own, head, body, `Tool ${part.name}, ${words}`);
  box.dataset.state = state;
  return box;
}

function column(title, content, part, fold) {
  const all = { ...fold, cut: part.cut, total: part.cut };
  return el(
    "section",
    { class: part.is_error ? "column failed" : "column" },
    el("h4", { text: title }),
    ...foldable(content, all, data),
  );
}

/** The arguments of a call. If one is a text of several lines, show each argument separately, with texts verbatim. */
function fields(input) {
  const isTable = input !== null && typeof input === "object" && !Array.isArray(input);
  const entries = isTable ? Object.entries(input) : [];
  if (!entries.some(([, value]) => typeof value === "string" && value.trim().includes("\n"))) return pretty(input);
  return entries.map(([name, value]) => `${name}: ${typeof value === "string" ? value : pretty(value)}`).join("\n");
}

function failure(results) {
  const part = results.find((result) => result.part.is_error).part;
  return shorten(oneLine(contentText(part.content)), 160);
}

/** The arguments of a call on one line. */
function argumentsOf(input) {
  if (typeof input === "string") return shorten(oneLine(input), 160);
  if (input === null || typeof input !== "object") return String(input ?? "");
  const told = Object.entries(input).map(([name, value]) => {
    const short = typeof value === "string" ? value : JSON.stringify(value);
    return `${name}: ${shorten(oneLine(short ?? ""), 60)}`;
  });
  return shorten(told.join(", "), 160);
}

/** A result without its call, which was compacted or deleted, or is not loaded yet. */
function looseResult(part, index, fold) {
  const content = contentText(part.content);
  const own = fold(`${index}`);
  const head = [icon("tool"), el("span", { class: "tool-name", text: part.name ?? "Result of a tool" })];
  if (!own.open) head.push(el("span", { class: "preview", text: shorten(oneLine(content), 160) }));
  head.push(el("span", { class: "tool-state", text: part.is_error ? "failed" : "result" }));
  const body = () => [column(part.is_error ? "Error" : "Result", content, part, fold(`${index}.result`))];
  const box = folding("tool", own, head, body, `Result of the tool ${part.name ?? part.tool_use_id}`);
  box.dataset.state = part.is_error ? "error" : "done";
  return box;
}

function unknown(part, fold) {
  const head = [
    icon("file"),
    el("span", { class: "reasoning-label", text: `Part of type ${shorten(String(part.type), 40)}` }),
  ];
  return folding("reasoning", fold, head, () => [data(pretty(part))], `Part of type ${part.type}`);
}

export function attachments(message) {
  const chips = message.parts.filter((part) => part.type === "attachment").map(chip);
  return chips.length ? el("ul", { class: "chips", "aria-label": "Attachments" }, ...chips) : null;
}

function chip(part) {
  const kind = { image: "image", video: "image", audio: "audio" }[part.modality] ?? "file";
  const name = part.name ?? part.reference ?? part.id ?? "attachment";
  const facts = [part.mime_type ?? part.modality, bytes(part.size)].filter(Boolean).join(", ");
  const told = [name, facts, part.reference].filter(Boolean).join("\n");
  return el(
    "li",
    { class: "chip", title: shorten(told, 400) },
    icon(kind),
    el("bdi", { class: "chip-name", text: shorten(name, 80) }),
    facts && el("span", { class: "chip-facts", text: facts }),
  );
}

export function sources(message, fold) {
  const found = message.sources ?? [];
  if (!found.length) return null;
  const counted = plural(message.sources_cut ?? found.length, "source");
  const own = fold("sources");
  const head = [icon("source"), el("span", { class: "reasoning-label", text: counted })];
  if (!own.open) head.push(el("span", { class: "preview", text: shorten(found.map(sourceName).join(" · "), 160) }));
  return folding("sources", own, head, () => [el("ol", {}, ...found.map(drawSource))], counted);
}

const sourceName = (source) => source.document_name ?? source.document_id ?? "a document";

function drawSource(source) {
  return el(
    "li",
    {},
    el("bdi", { class: "source-name", text: shorten(sourceName(source), 200) }),
    Number.isFinite(source.score) && el("span", { class: "chip-facts", text: source.score.toFixed(2) }),
    source.chunk && el("p", { class: "source-chunk", dir: "auto", text: shorten(source.chunk, 1200) }),
  );
}
