// Creates the elements of message parts. `fold(id)` returns `{id, open}`, the state of a foldable part.

import { imageAddress } from "./api.js";
import { el, icon } from "./dom.js";
import { brief, bytes, duration, exact, plural, shorten } from "./format.js";
import { Drawing, markdown, prose } from "./markdown.js";
import { contentText, data, foldable, pretty } from "./prose.js";

/** The element of a part; null if it is shown elsewhere. `drawings`: of the texts that are being written, by index. */
export function drawPart(row, part, index, { fold, drawings, conversation }) {
  switch (part.type) {
    case "text":
      if (!part.text) return null;
      // People's texts are shown as they typed them, and folded if they are long, such as a log file. Answers are whole.
      if (row.message.role === "user")
        return el("div", ...foldable(part.text, { ...fold(`${index}`), cut: part.cut }, prose));
      if (row.message.status !== "streaming") return numbered(markdown(part.text), index);
      drawings.set(index, new Drawing(part.text));
      return numbered(drawings.get(index).root, index);
    case "reasoning":
      return reasoning(part, fold(`${index}`), row.message.status === "streaming");
    case "tool_use":
      return toolCall(row, part, index, fold, conversation);
    case "tool_result":
      return row.paired.has(index) ? null : resultWithoutCall(row, part, index, fold, conversation);
    case "attachment":
      return null; // shown together, see attachments()
    default: {
      const label = `Part of type ${shorten(String(part.type), 40)}`;
      const body = () => [...images(part, row.message, conversation), data(readable(pretty(part), part))];
      return folding("reasoning", fold(`${index}`), labelled("file", label), "", body, label);
    }
  }
}

/** The images of a part, which are loaded when they come near the viewport. */
const images = ({ images: numbers = [], name }, message, conversation) =>
  numbers.map((number) => {
    const href = imageAddress(conversation, message.id, number);
    const alt = shorten(name || "image", 80);
    const failed = ({ target }) => target.replaceWith(`${alt} cannot be shown`);
    const image = el("img", { loading: "lazy", decoding: "async", alt, on: { error: failed }, src: href });
    return el("a.image", { href, target: "_blank", rel: "noopener" }, image);
  });

/** A text without the base64 of images that are shown. */
const readable = (text, part) => (part.images ? text.replace(/[\w+/=-]{300,}/g, "…") : text);

function numbered(element, index) {
  element.dataset.part = index;
  return element;
}

const labelled = (image, label) => [icon(image), el("span.reasoning-label", label)];

/** A head that is always visible, with a preview while folded; and a body that exists only while unfolded. */
function folding(kind, fold, [image, title, ...state], preview, body, label) {
  const head = el(
    `button.${kind}-head.fold`,
    {
      type: "button",
      "aria-expanded": String(fold.open),
      "aria-label": label,
      dir: "auto",
      data: { fold: fold.id },
    },
    ...[image, title, !fold.open && preview && el("span.preview", preview), ...state, icon("chevron")],
  );
  return el(`div.${kind}`, head, fold.open && el(`div.${kind}-body`, ...body()));
}

function reasoning(part, fold, isGrowing) {
  const text = part.text ?? "";
  const preview = brief(isGrowing ? text.slice(-140) : text, 140);
  const body = () => [prose(text)];
  return folding("reasoning", fold, labelled("thought", "Reasoning"), preview, body, `Reasoning: ${preview}`);
}

/** A call or a result of a tool. */
function tool(fold, name, state, words, preview, body, label) {
  const head = [icon("tool"), el("span.tool-name", shorten(name, 80)), el("span.tool-state", words)];
  const box = folding("tool", fold, head, preview, body, label);
  box.dataset.state = state;
  return box;
}

function toolCall(row, part, index, fold, conversation) {
  const results = row.results.get(index) ?? [];
  const failed = results.find((result) => result.part.is_error)?.part;
  const state = failed ? "error" : results.length ? "done" : row.working ? "waiting" : "none";
  const took = results.length ? duration(row.message.timestamp, results.at(-1).message.timestamp) : "";
  const words = { error: "failed", done: took || "done", waiting: "running", none: "no result" }[state];
  const preview = failed ? brief(contentText(failed.content), 160) : argumentsLine(part.input);
  const body = () => [
    column("Input", argumentsText(part.input), part, fold(`${index}.input`)),
    ...results.map(({ part, message }, at) => {
      const state = fold(`${index}.result${at}`, message);
      const content = readable(contentText(part.content), part);
      const box = column(part.is_error ? "Error" : "Result", content, part, state);
      box.append(...images(part, message, conversation));
      box.title = exact(message.timestamp);
      return box;
    }),
  ];
  return tool(fold(`${index}`), part.name, state, words, preview, body, `Tool ${part.name}, ${words}`);
}

const column = (title, content, part, fold) =>
  el(
    part.is_error ? "section.column.failed" : "section.column",
    el("h4", title),
    ...foldable(content, { ...fold, cut: part.cut }, data),
  );

/** The arguments of a call. If one is a text of several lines, each is shown separately, with texts verbatim. */
function argumentsText(input) {
  const isObject = input !== null && typeof input === "object" && !Array.isArray(input);
  const entries = isObject ? Object.entries(input) : [];
  if (!entries.some(([, value]) => typeof value === "string" && value.trim().includes("\n"))) return pretty(input);
  return entries.map(([name, value]) => `${name}: ${typeof value === "string" ? value : pretty(value)}`).join("\n");
}

/** The arguments of a call on one line. */
function argumentsLine(input) {
  if (input === null || typeof input !== "object") return brief(String(input ?? ""), 160);
  const shown = (value) => brief(typeof value === "string" ? value : (JSON.stringify(value) ?? ""), 60);
  const texts = Object.entries(input).map(([name, value]) => `${name}: ${shown(value)}`);
  return shorten(texts.join(", "), 160);
}

/** A result whose call was compacted or deleted, or is not loaded yet. */
function resultWithoutCall({ message }, part, index, fold, conversation) {
  const content = readable(contentText(part.content), part);
  const body = () => [
    column(part.is_error ? "Error" : "Result", content, part, fold(`${index}.result`)),
    ...images(part, message, conversation),
  ];
  const [state, words] = part.is_error ? ["error", "failed"] : ["done", "result"];
  const label = `Result of the tool ${part.name ?? part.tool_use_id}`;
  return tool(fold(`${index}`), part.name ?? "Result of a tool", state, words, brief(content, 160), body, label);
}

export function attachments(message, conversation) {
  const chips = message.parts.filter((part) => part.type === "attachment");
  const drawn = chips.map((part) => attachment(part, images(part, message, conversation)));
  return chips.length ? el("ul.chips", { "aria-label": "Attachments" }, ...drawn) : null;
}

function attachment(part, shown) {
  if (shown.length) return el("li", ...shown);
  const image = { image: "image", video: "image", audio: "audio" }[part.modality] ?? "file";
  const name = part.name ?? part.reference ?? part.id ?? "attachment";
  const facts = [part.mime_type ?? part.modality, bytes(part.size)].filter(Boolean).join(", ");
  const title = shorten([name, facts, part.reference].filter(Boolean).join("\n"), 400);
  const label = el("bdi.chip-name", shorten(name, 80));
  return el("li.chip", { title }, icon(image), label, facts && el("span.chip-facts", facts));
}

export function sources(message, fold) {
  const found = message.sources ?? [];
  if (!found.length) return null;
  const label = plural(message.sources_cut ?? found.length, "source");
  const names = shorten(found.map(sourceName).join(" · "), 160);
  const body = () => [el("ol", ...found.map(drawSource))];
  return folding("sources", fold("sources"), labelled("source", label), names, body, label);
}

const sourceName = (source) => source.document_name ?? source.document_id ?? "a document";

const drawSource = (source) =>
  el(
    "li",
    el("bdi.source-name", shorten(sourceName(source), 200)),
    Number.isFinite(source.score) && el("span.chip-facts", source.score.toFixed(2)),
    source.chunk && el("p.source-chunk", { dir: "auto" }, shorten(source.chunk, 1200)),
  );
