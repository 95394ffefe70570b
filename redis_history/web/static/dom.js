// Creates elements. Content of conversations is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// Stroked paths on a grid of 24.
const ICONS = {
  back: "M15 5l-7 7 7 7",
  close: "M6 6l12 12M18 6L6 18",
  chevron: "M9 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
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
};

/** Create an element. `props`: `class`, `text`, `data` (dataset), `on` (listeners); others become attributes. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "on")
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name] ?? ICONS.file);
  svg.append(path);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** A button that copies a text. */
export function copying(text, label = "Copy") {
  const button = el("button", { type: "button", class: "button quiet", text: label });
  button.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(text).then(
      () => true,
      () => false,
    ); // needs https
    button.textContent = done ? "Copied" : "Copying is not allowed here";
  });
  return button;
}

/** Replace the children of a node only if `text` differs, so that screen readers announce each change once. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A function that runs `work` once in the next frame, however often it is called; also while the page is hidden. */
export function oncePerFrame(work) {
  let asked = false;
  const run = () => {
    if (!asked) return;
    asked = false;
    work();
  };
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(run);
    setTimeout(run, 120); // a hidden page has no frames
  };
}
