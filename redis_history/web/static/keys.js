// Handles all keyboard shortcuts. Input fields handle their own keys, except for Escape.

/** `at()`: the active zone, "list", "hits" or "timeline"; `does`: a function for each action. */
export function bindKeys({ does }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]"))
      return;
    const field = event.target.closest("input, textarea, select, [contenteditable]");
    const work = field ? inField(event, does) : anywhere(event, does);
    if (!work) return;
    if (work() !== false) event.preventDefault();
  });
}

function inField(event, does) {
  if (event.key === "Escape") return () => does.leaveField(event.target);
  if (event.target.id !== "search" && event.target.id !== "filter") return null;
  if (event.key === "ArrowDown" || event.key === "Enter") return () => does.fromField(event.target, event.key);
  return null;
}

function anywhere(event, does) {
  switch (event.key) {
    case "/":
      return does.search;
    case "f":
      return does.filter;
    case "?":
      return does.help;
    case "t":
      return does.theme;
    case "j":
      return () => does.step(1);
    case "k":
      return () => does.step(-1);
    case "ArrowDown":
      return () => does.arrow(1);
    case "ArrowUp":
      return () => does.arrow(-1);
    case "g":
    case "Home":
      return does.toStart;
    case "G":
    case "End":
      return does.toEnd;
    case "Enter":
      return () => does.enter(event.target);
    case "Escape":
      return does.escape;
    default:
      return null;
  }
}
