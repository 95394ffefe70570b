// Buttons that open a dialog of their name: export; and writing, renaming and deleting, if the server allows it.

import { api, go } from "./api.js";
import { FIRST } from "./conversation.js";
import { byId, el, icon } from "./dom.js";
import { author, exact, titleOf } from "./format.js";
import { contentText, pretty } from "./prose.js";

/** Show a button that opens its dialog. `onChoice(value)`: called with the value of the chosen button. */
function bindDialog(name, image, onChoice) {
  const [button, dialog] = [byId(name), byId(`${name}-dialog`)];
  button.append(icon(image));
  button.hidden = false;
  button.addEventListener("click", () => {
    dialog.returnValue = "";
    dialog.showModal();
  });
  for (const one of dialog.querySelectorAll("button[type=button]")) one.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.returnValue && onChoice(dialog.returnValue));
}

export function offerExport(timeline) {
  bindDialog("export", "save", (kind) =>
    saveAs(kind, timeline.id).catch((error) => timeline.header.complain(error.message)),
  );
}

/** Save all messages of a conversation as a file, "json" or "markdown". */
async function saveAs(kind, id) {
  const info = await api.conversation(id);
  const messages = [];
  for (let page = { more: true }; page.more;) {
    page = await api.messages(id, { limit: 1000, first: 1, since: messages.at(-1)?.position ?? FIRST });
    for (const message of page.messages) {
      const cut = message.parts.some((part) => part.cut) || message.sources_cut || message.metadata_cut;
      messages.push(cut ? await api.message(id, message.id) : message);
    }
  }
  const title = titleOf(info);
  const [text, type, ending] =
    kind === "json"
      ? [JSON.stringify({ conversation: info, messages }, null, 2), "application/json", "json"]
      : [asMarkdown(title, messages), "text/markdown", "md"];
  const href = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href, download: `${title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 80)}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

function asMarkdown(title, messages) {
  const texts = messages.flatMap((message) => [
    `## ${author(message).name}, ${exact(message.timestamp)}`,
    ...message.parts.map(partAsMarkdown).filter(Boolean),
  ]);
  return `${[`# ${title}`, ...texts].join("\n\n")}\n`;
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

const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export function offerWrites(timeline) {
  const composer = byId("composer");
  const draft = byId("draft");
  const drafts = new Map(); // by conversation
  let owner = timeline.id;
  let pending = null; // the message being sent: with the same id, a retry stores it only once

  addEventListener("hashchange", () => {
    if (owner === timeline.id) return;
    drafts.set(owner, draft.value);
    owner = timeline.id;
    draft.value = drafts.get(owner) ?? "";
    pending = null;
  });

  const failed = (error) => timeline.header.complain(error.message);

  byId("stop").addEventListener("click", () => {
    const { id, conversation } = timeline;
    if (conversation?.run) api.stop(id, conversation.run.run_id).catch((error) => timeline.id === id && failed(error));
  });

  for (const name of ["retry", "drop"]) {
    byId(name).addEventListener("click", () => {
      const { id } = timeline;
      api[name](id).catch((error) => timeline.id === id && failed(error));
    });
  }

  byId("app").dataset.writable = ""; // shows the buttons of messages
  timeline.scroller.addEventListener("click", ({ target: { dataset }, target }) => {
    const { id } = timeline;
    const { message } = target.closest(".row")?.row ?? {};
    if (dataset.change === "Branch") api.fork(id, message.id).then((made) => go({ conversation: made.id }), failed);
    else if (dataset.change) api.pin(id, message.id, dataset.change === "Pin").catch(failed);
  });

  composer.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = draft.value.trim();
    const { id } = timeline;
    if (!text || id === null || pending?.sending) return;
    if (pending?.text !== text) pending = { text, id: newId() };
    const sent = pending;
    sent.sending = true;
    try {
      await api.post(id, { text, id: sent.id, ask: true });
    } catch (error) {
      sent.sending = false;
      if (timeline.id === id) failed(error);
      return;
    }
    if (pending === sent) pending = null;
    // Keep text that was typed since, here or in another conversation.
    const value = id === owner ? draft.value : (drafts.get(id) ?? "");
    const left = value.trim() === text ? "" : value.startsWith(text) ? value.slice(text.length).trimStart() : value;
    if (id === owner) draft.value = left;
    else drafts.set(id, left);
    if (timeline.id === id) timeline.toEnd();
  });
  draft.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    composer.requestSubmit();
  });

  const title = byId("rename-dialog").querySelector("input");
  bindDialog("rename", "pencil", () => api.rename(timeline.id, title.value.trim() || null).catch(failed));
  byId("rename").addEventListener("click", () => {
    title.value = timeline.conversation.info?.title ?? "";
    title.select();
  });
  bindDialog("delete", "trash", () => {
    const { id } = timeline;
    api.remove(id).then(() => timeline.id === id && go({}), failed);
  });
  composer.hidden = false;
}
