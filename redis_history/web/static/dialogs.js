// Buttons that open a dialog of their name, and the export of a conversation.

import { api } from "./api.js";
import { FIRST } from "./conversation.js";
import { byId, icon } from "./dom.js";
import { author, exact } from "./format.js";
import { contentText, pretty } from "./prose.js";

/** Show a button that opens its dialog. `onChoice(value)`: called with the value of the chosen button. */
export function bindDialog(name, picture, onChoice) {
  const [button, dialog] = [byId(name), byId(`${name}-dialog`)];
  button.append(icon(picture));
  button.hidden = false;
  button.addEventListener("click", () => {
    dialog.returnValue = "";
    dialog.showModal();
  });
  for (const one of dialog.querySelectorAll("button[type=button]")) one.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.returnValue && onChoice(dialog.returnValue));
}

/** Save all messages of a conversation as a file, "json" or "markdown". */
export async function saveAs(kind, id) {
  const info = await api.conversation(id);
  const messages = [];
  for (let page = { more: true }; page.more;) {
    page = await api.messages(id, { limit: 1000, first: 1, since: messages.at(-1)?.position ?? FIRST });
    for (const message of page.messages) {
      const cut = message.parts.some((part) => part.cut) || message.sources_cut || message.metadata_cut;
      messages.push(cut ? await api.message(id, message.id) : message);
    }
  }
  const title = info.title || info.label || id;
  const text =
    kind === "json" ? JSON.stringify({ conversation: info, messages }, null, 2) : asMarkdown(title, messages);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind === "json" ? "application/json" : "text/markdown" }));
  link.download = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 80)}.${kind === "json" ? "json" : "md"}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function asMarkdown(title, messages) {
  const told = messages.map((message) => {
    const parts = message.parts.map(partAsMarkdown).filter(Boolean);
    return [`## ${author(message).name}, ${exact(message.timestamp)}`, ...parts].join("\n\n");
  });
  return `${[`# ${title}`, ...told].join("\n\n")}\n`;
}

function partAsMarkdown(part) {
  if (part.type === "text") return part.text;
  if (part.type === "reasoning") return part.text?.replace(/^/gm, "> ");
  if (part.type === "tool_use") return `Call of ${part.name}:\n\n${fenced(pretty(part.input))}`;
  if (part.type === "tool_result") return `Result:\n\n${fenced(contentText(part.content))}`;
  return `(${[part.type, part.name, part.reference].filter(Boolean).join(", ")})`;
}

/** A block of code, whose fence is longer than those inside. */
function fenced(text) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([mark]) => mark.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
