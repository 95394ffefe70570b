// Folds long texts; code and data.

import { copying, el } from "./dom.js";
import { plural, shorten } from "./format.js";
import { languages, tokenize } from "./vendor/speed-highlight.js";

const LONG = 1800; // characters
const TALL = 26; // lines
const SHOWN = 1200;
const SHOWN_LINES = 16;
const COLOURED = 6000; // characters; longer code stays in one colour
const ALIASES = new Map(
  Object.entries({
    python: "py",
    javascript: "js",
    typescript: "js",
    ts: "js",
    sh: "bash",
    shell: "bash",
    yml: "yaml",
    patch: "diff",
  }),
);

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
  const name = shorten(language, 24);
  const label = language ? `Code, ${name}` : "Code";
  const head = el("span", { class: "code-head" }, name, copying(text));
  const body = coloured(el("code"), text, language.toLowerCase());
  return el("pre", { class: "code", dir: "ltr", tabindex: "0", "aria-label": label }, head, body);
}

/** Append a text, in the colours of a known language. */
function coloured(node, text, language) {
  const name = ALIASES.get(language) ?? language;
  if (!Object.hasOwn(languages, name) || text.length > COLOURED) node.append(text);
  else
    tokenize(
      text,
      languages[name],
      (piece, kind) => node.append(kind ? el("span", { class: `code-${kind}`, text: piece }) : piece),
      { languages },
    );
  return node;
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

/** Preformatted text; coloured if it is JSON. */
export const data = (text) =>
  coloured(
    el("pre", { class: "data", dir: "auto", tabindex: "0", "aria-label": "Data" }),
    text,
    /^[[{]/.test(text) && "json",
  );

/** The result of a tool as text. */
export function contentText(content) {
  const list = Array.isArray(content) ? content : [content];
  const texts = list.map((block) => (typeof block === "string" ? block : block?.type === "text" ? block.text : null));
  if (list.length && texts.every((text) => typeof text === "string")) return pretty(texts.join("\n"));
  return pretty(content);
}
