// Markdown as elements. The parser (vendor/markdown-it.js, HTML off) only splits a text into tokens, in linear time;
// elements are made here. Images are shown as links, so that a message causes no request.

import { el } from "./dom.js";
import { code } from "./prose.js";
import MarkdownIt from "./vendor/markdown-it.js";

const LONGEST = 20_000; // characters; longer texts are shown plainly
const DEEPEST = 30; // elements inside each other; browsers are slow with deep ones
const parser = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST });
const plain = new MarkdownIt("zero").enable(["fence", "backticks"]);

/** A text as Markdown. */
export const markdown = (text) => drawn(text.length > LONGEST ? plain : parser, text);

/** A text as it was typed, with only its code set apart. */
export const prose = (text) => drawn(plain, text);

function drawn(by, text) {
  const root = el("div.prose", { dir: "auto" });
  build(by.parse(text, {}), root);
  return root;
}

/** Append the elements of tokens. Each token of nesting 1 opens an element, which one of nesting -1 closes. */
function build(tokens, root) {
  const open = [root];
  for (const token of tokens) {
    const parent = open.at(-1);
    if (token.type === "inline") build(token.children, parent);
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
  const heading = /^h([1-6])$/.exec(token.tag);
  const tag = heading ? `h${Math.min(6, Number(heading[1]) + 3)}` : token.tag;
  return el(tag, { dir: "auto", start: token.attrGet("start") });
}

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
      return link(token.attrGet("src"), token.content || token.attrGet("src"));
    default:
      return document.createTextNode(token.content);
  }
}

/** A link to a web page or a mail address; other addresses are shown as text. */
const link = (href, ...text) =>
  /^(?:http|https|mailto):/i.test(href)
    ? el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...text)
    : el("span", ...text);
