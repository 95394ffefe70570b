// Markdown as elements. The parser (vendor/markdown-it.js, HTML off) only splits a text into tokens, in linear time;
// elements are made here. Images are shown as links, so that a message causes no request, unless they are in the text.

import { el, morph } from "./dom.js";
import { code } from "./prose.js";
import MarkdownIt from "./vendor/markdown-it.js";

const PIECE = 20_000; // characters that are parsed at once
const DEEPEST = 30; // elements inside each other; browsers are slow with deep ones
const LONGEST_FORMULA = 2_000;
const parser = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST });
const plain = new MarkdownIt("zero").enable(["fence", "backticks"]);

parser.inline.ruler.before("escape", "formula", formula);
parser.inline.ruler.before("link", "note", noteReference);
parser.block.ruler.before("fence", "formula", formulaBlock, { alt: ["paragraph", "blockquote", "list"] });
parser.block.ruler.before("reference", "note", note, { alt: ["paragraph"] });

/** A text as Markdown. */
export const markdown = (text) => new Drawing(text).root;

/** A text as it was typed, with only its code set apart. */
export const prose = (text) => new Drawing(text, plain).root;

/** The elements of a text that may grow. Those of all blocks but the last are settled, and stay as they are. */
export class Drawing {
  constructor(text, by = parser) {
    this.root = el("div.prose", { dir: "auto" });
    this.by = by;
    this.settle("", 0);
    this.set(text);
  }

  settle(text, blocks) {
    this.settled = text;
    this.blocks = blocks;
    if (!text) this.env = {}; // the targets of links
  }

  set(text) {
    const whole = text.replace(/\r\n?/g, "\n");
    if (!whole.startsWith(this.settled)) this.settle("", 0);
    const { blocks } = this;
    const added = el("div");
    for (let at = this.settled.length; at < whole.length;) {
      const rest = whole.slice(at);
      const { tokens, last, begin, size } = this.parse(rest, PIECE);
      const isEnd = size >= rest.length;
      if (isEnd || begin) build(tokens.slice(0, last), added);
      else build(plain.parse(rest.slice(0, size), {}), added); // one block that is longer than a piece
      if (isEnd) {
        this.settle(whole.slice(0, at + begin), blocks + added.childNodes.length);
        build(tokens.slice(last), added);
      }
      at += isEnd || !begin ? size : begin;
    }
    morph(this.root, added, blocks);
  }

  /** The tokens of the beginning of a text, the index of its last block, and the offset at which that begins. */
  parse(text, size) {
    const piece = text.slice(0, size);
    const tokens = this.by.parse(piece, this.env);
    const last = Math.max(
      0,
      tokens.findLastIndex(({ level, map, nesting }) => level === 0 && map && nesting >= 0),
    );
    let begin = 0;
    for (let line = tokens[last]?.map[0] ?? 0; line > 0; line -= 1) begin = piece.indexOf("\n", begin) + 1;
    const isLongCode = !begin && size < text.length && tokens[last]?.type === "fence";
    return isLongCode ? this.parse(text, text.length) : { tokens, last, begin, size };
  }
}

/** Append the elements of tokens. Each token of nesting 1 opens an element, which one of nesting -1 closes. */
function build(tokens, root) {
  const open = [root];
  for (const token of tokens) {
    const parent = open.at(-1);
    if (token.type === "inline") build(withTask(token.children, parent), parent);
    else if (token.nesting === -1) open.pop();
    else if (token.nesting === 1) {
      const flat = token.hidden || open.length > DEEPEST; // hidden: the paragraphs of a list without blank lines
      const node = flat ? parent : container(token);
      if (!flat) parent.append(node.closest(".table") ?? node);
      open.push(node);
    } else parent.append(single(token));
  }
}

function container(token) {
  if (token.tag === "a") return link(token.attrGet("href"));
  if (token.tag === "table") {
    const table = el("table");
    el("div.table", { tabindex: "0", role: "region", "aria-label": "Table" }, table);
    return table;
  }
  if (token.type === "note_open") return el("p.note", { dir: "auto" }, el("sup", token.info));
  const heading = /^h([1-6])$/.exec(token.tag);
  const tag = heading ? `h${Math.min(6, Number(heading[1]) + 3)}` : token.tag;
  const align = /center|right/.exec(token.attrGet("style") ?? "")?.[0];
  return el(tag, { dir: "auto", start: token.attrGet("start"), data: data({ align, level: heading?.[1] }) });
}

const data = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

function single(token) {
  switch (token.type) {
    case "softbreak":
    case "hardbreak":
      return el("br");
    case "hr":
      return el("hr");
    case "code_inline":
      return el("code", token.content);
    case "fence":
    case "code_block":
      return code(token.content.replace(/\n$/, ""), /^\S*/.exec(token.info.trim())[0]);
    case "image":
      if (/^data:image\/(?:png|jpeg|gif|webp|avif);base64,/i.test(token.attrGet("src")))
        return el("img", { src: token.attrGet("src"), alt: token.content || "image" });
      return link(token.attrGet("src"), token.content || token.attrGet("src"));
    case "formula":
      return el(token.block ? "p.formula" : "span.formula", { dir: "ltr" }, token.content);
    case "note_reference":
      return el("sup", token.content);
    case "task":
      return el("span.task", { role: "img", "aria-label": token.markup ? "done" : "to do" }, token.markup ? "☑" : "☐");
    default:
      return document.createTextNode(token.content);
  }
}

/** A link to a web page or a mail address; other addresses are shown as text. */
const link = (href, ...text) =>
  /^(?:http|https|mailto):/i.test(href)
    ? el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...text)
    : el("span", ...text);

// What Markdown of models has beside CommonMark: formulas, which are shown as they are written; notes; tasks.

const FORMULAS = [
  ["$$", "$$"],
  ["\\[", "\\]"],
  ["\\(", "\\)"],
  ["$", "$"],
];

function formula(state, silent) {
  const { src, pos } = state;
  const [opening, closing] = FORMULAS.find(([begin]) => src.startsWith(begin, pos)) ?? [];
  if (!opening) return false;
  const from = pos + opening.length;
  const end = src.slice(from, from + LONGEST_FORMULA).indexOf(closing) + from;
  if (end <= from) return false;
  const content = src.slice(from, end);
  // Prices are no formulas: "$5 and $6".
  if (opening === "$" && (/^\s|\s$|\n/.test(content) || /[0-9]/.test(src[end + 1] ?? ""))) return false;
  if (!silent) state.push("formula", "", 0).content = src.slice(pos, end + closing.length);
  state.pos = end + closing.length;
  return true;
}

function formulaBlock(state, startLine, endLine, silent) {
  const start = state.bMarks[startLine] + state.tShift[startLine];
  const [opening, closing] = FORMULAS.slice(0, 2).find(([begin]) => state.src.startsWith(begin, start)) ?? [];
  if (!opening || state.sCount[startLine] - state.blkIndent >= 4) return false;
  let line = startLine;
  const lineEnds = () =>
    state.src
      .slice(line === startLine ? start + 2 : state.bMarks[line], state.eMarks[line])
      .trimEnd()
      .endsWith(closing);
  while (!lineEnds()) {
    line += 1;
    if (line >= endLine || state.bMarks[line] - start > LONGEST_FORMULA) return false;
  }
  if (silent) return true;
  const token = state.push("formula", "", 0);
  token.content = state.src.slice(start, state.eMarks[line]).trimEnd();
  token.map = [startLine, line + 1];
  token.block = true;
  state.line = line + 1;
  return true;
}

function noteReference(state, silent) {
  const found = /^\[\^([^\s\]]{1,40})\]/.exec(state.src.slice(state.pos, state.pos + 44));
  if (!found) return false;
  if (!silent) state.push("note_reference", "", 0).content = found[1];
  state.pos += found[0].length;
  return true;
}

/** A footnote, shown where it is written. */
function note(state, startLine, endLine, silent) {
  const start = state.bMarks[startLine] + state.tShift[startLine];
  const found = /^\[\^([^\s\]]{1,40})\]:[ \t]*/.exec(state.src.slice(start, state.eMarks[startLine]));
  if (!found || state.sCount[startLine] - state.blkIndent >= 4) return false;
  if (silent) return true;
  let line = startLine + 1;
  while (line < endLine && !state.isEmpty(line) && state.sCount[line] > state.blkIndent) line += 1;
  const opened = state.push("note_open", "p", 1);
  opened.info = found[1];
  opened.map = [startLine, line];
  const inline = state.push("inline", "", 0);
  inline.content = state.src.slice(start + found[0].length, state.eMarks[line - 1]);
  inline.map = [startLine, line];
  inline.children = [];
  state.push("note_close", "p", -1);
  state.line = line;
  return true;
}

/** The tokens of a line, with the box of a task at its beginning. */
function withTask(tokens, parent) {
  const [first] = tokens;
  const isFirst = parent.matches?.("li:empty, li > p:first-child:empty");
  const found = isFirst && first?.type === "text" && /^\[([ xX])\] /.exec(first.content);
  if (!found) return tokens;
  first.content = first.content.slice(3);
  return [{ type: "task", markup: found[1].trim(), nesting: 0 }, ...tokens];
}
