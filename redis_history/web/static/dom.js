// Creates and changes elements. Content of conversations is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// Stroked paths on a grid of 24.
const ICONS = {
  back: "M15 5l-7 7 7 7",
  close: "M6 6l12 12M18 6L6 18",
  chevron: "M9 6l6 6-6 6",
  help: "M9.2 9.2a2.9 2.9 0 1 1 4.3 2.6c-.9.5-1.5 1.1-1.5 2.2M12 17.6v.1",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  light:
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  tool: "M14.5 6.5a4 4 0 0 0-5.3 4.9L4 16.6V20h3.4l5.2-5.2a4 4 0 0 0 4.9-5.3l-2.6 2.6-2.9-.6-.6-2.9z",
  thought: "M12 4a6 6 0 0 0-3.5 10.9V17h7v-2.1A6 6 0 0 0 12 4zM9.5 20h5",
  file: "M7 3.5h7l4 4v13H7zM14 3.5v4h4",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5v.1",
  audio: "M9 18V6l10-2v12M9 18a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0zM19 16a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0z",
  source: "M5 4.5h10a3 3 0 0 1 3 3V20H8a3 3 0 0 1-3-3zM9 9h5M9 12.5h5",
  fold: "M4 6h16M7 12h10M10 18h4",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13",
  pencil: "M5 19l1-4L16 5l3 3L9 18z",
  save: "M12 4v11M7 10l5 5 5-5M5 20h14",
  chart: "M4 20h16M7 16v-5M12 16V5M17 16v-8",
  inbox: "M4 13h4l2 3h4l2-3h4M4 13l3-8h10l3 8v6H4z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
  code: "M9 7l-5 5 5 5M15 7l5 5-5 5",
  branch:
    "M7 8v8M7 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM7 20a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM17 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM17 10c0 4-5 3-10 6",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  retry: "M19 6v5h-5M19 11a7 7 0 1 0 0 5",
};

/**
 * Create an element: `el("span.name", { title: "…" }, child, …)`. Properties may be left out. They are attributes, except
 * `data` (the dataset) and `on` (listeners). Null, false and "" are left out, as properties and as children.
 */
export function el(selector, ...children) {
  const [tag, ...classes] = selector.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  const { data = {}, on = {}, ...attributes } = children[0]?.constructor === Object ? children.shift() : {};
  Object.assign(node.dataset, data);
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  for (const [name, value] of Object.entries(attributes)) if (isShown(value)) node.setAttribute(name, value);
  node.append(...children.filter(isShown));
  return node;
}

const isShown = (value) => value !== undefined && value !== null && value !== false && value !== "";

/** A small button with a text. */
export const button = (text, click, attributes = {}) =>
  el("button.button.quiet", { type: "button", on: { click }, ...attributes }, text);

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** A button with an image, whose name a tooltip shows. */
export const imageButton = (image, name, click, attributes = {}) =>
  el(
    "button.icon-button",
    { type: "button", "aria-label": name, title: name, on: { click }, ...attributes },
    icon(image),
  );

const copied = async (text) => {
  try {
    await navigator.clipboard.writeText(text); // needs https
    return "Copied";
  } catch {
    return "Copying is not allowed here";
  }
};

/** A button that copies the text that `find(button)` returns. */
export const copyButton = (find) =>
  button("Copy", async ({ target }) => {
    target.textContent = await copied(find(target));
  });

/** The same with an image. */
export const copyImageButton = (image, name, find) =>
  imageButton(image, name, async ({ currentTarget: own }) => {
    own.title = own.ariaLabel = await copied(find(own));
    own.dataset.done = "";
  });

/**
 * Give `old` the children of `next`, from an index on. Nodes that do not differ stay, so that they keep the focus, the
 * selection and the pointer; so do their listeners, which must not depend on what a node was made of.
 */
export function morph(old, next, from = 0) {
  const was = [...old.childNodes].slice(from);
  const now = [...next.childNodes];
  now.forEach((node, at) => {
    const before = was[at];
    if (!before) old.append(node);
    else if (!before.isEqualNode(node)) become(before, node);
  });
  for (const node of was.slice(now.length)) node.remove();
}

/** Change a node into another, see `morph`. */
export function become(old, next) {
  if (old.nodeType === Node.TEXT_NODE && next.nodeType === Node.TEXT_NODE) old.data = next.data;
  else if (old.nodeName !== next.nodeName || !(old instanceof Element)) old.replaceWith(next);
  else {
    for (const name of old.getAttributeNames()) if (!next.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of next.attributes) {
      if (name === "style")
        old.style.cssText = value; // the page's security policy forbids it as an attribute
      else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    morph(old, next);
  }
}

/** Replace the children of a node only if `text` differs, so that screen readers announce each change once. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A function that runs `work` once in the next frame, however often it is called; also while the page is hidden. */
export function oncePerFrame(work) {
  let requested = false;
  const run = () => {
    if (!requested) return;
    requested = false; // before the work, which may fail or request another frame
    work();
  };
  return () => {
    if (requested) return;
    requested = true;
    requestAnimationFrame(run);
    setTimeout(run, 120); // a hidden page has no frames
  };
}

const MARKED = "found";
const MOST_MARKS = 200;

/** Mark words in an element without changing it (CSS Custom Highlight API, if available). */
export function markWords(element, words) {
  unmarkWords();
  if (!globalThis.Highlight || !words.length) return;
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && ranges.length < MOST_MARKS; node = walker.nextNode()) {
    if (node.parentElement.closest(".heading, time, .day")) continue;
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue; // lower case changed the length, so the offsets would be wrong
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set(MARKED, new Highlight(...ranges.slice(0, MOST_MARKS)));
}

export const unmarkWords = () => globalThis.CSS?.highlights?.delete(MARKED);
