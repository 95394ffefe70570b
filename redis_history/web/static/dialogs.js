// Buttons that open a dialog of their name: export; and writing, renaming and deleting, if the server allows it.

import { api, go } from "./api.js";
import { FIRST } from "./conversation.js";
import { byId, el, icon, setText } from "./dom.js";
import { author, exact, titleOf } from "./format.js";
import { contentText, pretty } from "./prose.js";

/** Show a button that opens its dialog. `onChoice(value)`: called with the value of the chosen button. */
function bindDialog(name, image, onChoice) {
  const [button, dialog] = [byId(name), byId(`${name}-dialog`)];
  button.append(icon(image));
  button.addEventListener("click", () => {
    dialog.returnValue = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => dialog.returnValue && onChoice(dialog.returnValue));
}

for (const one of document.querySelectorAll("dialog form button[type=button]"))
  one.addEventListener("click", () => one.closest("dialog").close());

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

  const CHANGES = {
    Branch: (id, message) => api.fork(id, message.id).then((made) => go({ conversation: made.id })),
    Pin: (id, message) => api.pin(id, message.id, true),
    Unpin: (id, message) => api.pin(id, message.id, false),
    Edit: edit,
    "Ask again": async (id, message) => {
      const text = "The messages after it are deleted. To keep them, branch from it first.";
      if (await confirmed("Ask this again?", text, "Ask again")) await api.askAgain(id, message.id);
    },
    "Delete message": async (id, message) => {
      const text = "It is deleted for everybody.";
      if (await confirmed("Delete this message?", text, "Delete")) await api.removeMessage(id, message.id);
    },
  };
  timeline.scroller.addEventListener("click", ({ target }) => {
    const { id } = timeline;
    const { change } = target.closest("[data-change]")?.dataset ?? {};
    if (change) CHANGES[change](id, target.closest(".row").row.message).catch(failed);
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
}

/** Show a dialog; its value when it is closed, "" without a choice. */
function choiceOf(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue), { once: true }));
}

function confirmed(title, text, label) {
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), label);
  return choiceOf(byId("confirm-dialog"));
}

async function edit(id, message) {
  const dialog = byId("edit-dialog");
  const field = dialog.querySelector("textarea");
  const whole = message.parts.some((part) => part.cut) ? await api.message(id, message.id) : message;
  const { text } = whole.parts.find((part) => part.type === "text");
  field.value = text;
  const choice = await choiceOf(dialog);
  if (choice && field.value.trim() && field.value !== text) await api.edit(id, message.id, field.value);
}
