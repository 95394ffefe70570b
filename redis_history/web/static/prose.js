// Folds long texts; code and data.

import { el } from "./dom.js";
import { plural, shorten } from "./format.js";

const LONG = 1800; // characters
const TALL = 26; // lines
const SHOWN = 1200;
const SHOWN_LINES = 16;
const COLOURED = 6000; // JSON longer than this stays in one colour

/** The beginning of a text that is too long to show in full, or null. */
function beginning(text) {
  let lines = 1;
  let at = -1;
  let cut = -1;
  while (lines <= TALL && (at = text.indexOf("\n", at + 1)) >= 0) {
    lines += 1;
    if (lines === SHOWN_LINES) cut = at;
  }
  if (text.length <= LONG && lines <= TALL) return null;
  return shorten(text, Math.min(SHOWN, lines > TALL && cut > 0 ? cut : SHOWN));
}

/** `make(text)`; for a long text, of its beginning, with a button. `fold`: `{open, total, toggle, id}`. */
export function foldable(text, fold, make) {
  const start = fold.cut ? (beginning(text) ?? text) : beginning(text);
  if (start === null) return [make(text)];
  const label = fold.open ? "Show less" : `Show all ${plural(fold.total ?? text.length, "character")}`;
  const button = el("button", { type: "button", class: "more", text: label, "aria-expanded": String(fold.open) });
  button.dataset.fold = fold.id;
  button.addEventListener("click", fold.toggle);
  return [make(fold.open ? text : start), button];
}

export function code(text, language = "") {
  const block = el("pre", {
    class: "code",
    dir: "ltr",
    tabindex: "0",
    "aria-label": language ? `Code, ${language}` : "Code",
  });
  if (language) block.append(el("span", { class: "code-language", text: shorten(language, 24) }));
  block.append(el("code", { text }));
  return block;
}

/** A readable form of a JSON value, or of a text that contains one. */
export function pretty(value) {
  if (typeof value === "string") {
    if (!/^\s*[[{]/.test(value)) return value;
    try {
      return JSON.stringify(JSON.parse(value), null, 2);
    } catch {
      return value;
    }
  }
  return JSON.stringify(value, null, 2) ?? "";
}

const JSON_TOKENS = /("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b/g;

/** Preformatted text; coloured if it is JSON. */
export function data(text) {
  const block = el("pre", { class: "data", dir: "auto", tabindex: "0", "aria-label": "Data" });
  if (!/^[[{]/.test(text) || text.length > COLOURED) {
    block.textContent = text;
    return block;
  }
  let end = 0;
  for (const match of text.matchAll(JSON_TOKENS)) {
    const kind = match[2] ? "json-key" : match[1] ? "json-text" : "json-value";
    block.append(text.slice(end, match.index), el("span", { class: kind, text: match[1] ?? match[0] }), match[2] ?? "");
    end = match.index + match[0].length;
  }
  block.append(text.slice(end));
  return block;
}

/** The result of a tool as text. */
export function contentText(content) {
  const list = Array.isArray(content) ? content : [content];
  const texts = list.map((block) => (typeof block === "string" ? block : block?.type === "text" ? block.text : null));
  if (list.length && texts.every((text) => typeof text === "string")) return pretty(texts.join("\n"));
  return pretty(content);
}
