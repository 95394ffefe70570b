// Folds long texts; code and data.

import { copyButton, el } from "./dom.js";
import { plural, shorten } from "./format.js";
import { languages, tokenize } from "./vendor/speed-highlight.js";

const LONG = 1800; // characters
const TALL = 26; // lines
const SHOWN = 1200;
const SHOWN_LINES = 16;
const COLOURED = 6000; // characters; longer code stays in one color
// The rule for functions of JavaScript takes cubic time: 2,000 letters and blanks froze the page for most of a second.
const LANGUAGES = { ...languages, js: languages.js.filter((rule) => rule.type !== "func") };
const ALIASES = {
  python: "py",
  javascript: "js",
  typescript: "js",
  ts: "js",
  sh: "bash",
  shell: "bash",
  yml: "yaml",
  rust: "rs",
  postgresql: "sql",
  postgres: "sql",
  mysql: "sql",
  sqlite: "sql",
  patch: "diff",
};

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

/** `make(text)`; for a long text, of its beginning, with a button. `fold`: `{open, id, cut}`. */
export function foldable(text, { open, id, cut }, make) {
  const start = beginning(text) ?? (cut ? text : null);
  if (start === null) return [make(text)];
  const label = open ? "Show less" : `Show all ${plural(cut ?? text.length, "character")}`;
  const props = { type: "button", "aria-expanded": String(open), data: { fold: id } };
  return [make(open ? text : start), el("button.more", props, label)];
}

export function code(text, language = "") {
  const name = shorten(language, 24);
  const label = language ? `Code, ${name}` : "Code";
  const body = colored(el("code"), text, language.toLowerCase());
  const head = el("span.code-head", el("span", name), copyButton(codeOf));
  return el("pre.code", { dir: "ltr", tabindex: "0", "aria-label": label }, head, body);
}

const codeOf = (button) => button.closest("pre").querySelector("code").textContent;

/** Append a text, in the colors of a known language. */
function colored(node, text, language) {
  const name = Object.hasOwn(ALIASES, language) ? ALIASES[language] : language;
  const append = (piece, kind) => node.append(kind ? el(`span.code-${kind}`, piece) : piece);
  if (Object.hasOwn(LANGUAGES, name) && text.length <= COLOURED)
    tokenize(text, LANGUAGES[name], append, { languages: LANGUAGES });
  else node.append(text);
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

/** Preformatted text; colored if it is JSON. */
export const data = (text) =>
  colored(el("pre.data", { dir: "auto", tabindex: "0", "aria-label": "Data" }), text, /^[[{]/.test(text) ? "json" : "");

/** The result of a tool as text. */
export function contentText(content) {
  const list = Array.isArray(content) ? content : [content];
  const texts = list.map((block) => (typeof block === "string" ? block : block?.type === "text" ? block.text : null));
  if (list.length && texts.every((text) => typeof text === "string")) return pretty(texts.join("\n"));
  return pretty(content);
}
