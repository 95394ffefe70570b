// Writing, renaming and deleting, if the server allows it. Otherwise these controls do not exist.

import { api } from "./api.js";
import { bindDialog } from "./dialogs.js";
import { byId } from "./dom.js";
import { go } from "./route.js";

const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export function offerWrites(timeline) {
  const composer = byId("composer");
  const draft = byId("draft");
  const drafts = new Map(); // by conversation
  let owner = timeline.id;
  let pending = null; // the id of the message being sent: with the same id, a retry stores it only once

  addEventListener("hashchange", () => {
    if (owner === timeline.id) return;
    drafts.set(owner, draft.value);
    owner = timeline.id;
    draft.value = drafts.get(owner) ?? "";
    pending = null;
  });

  const failed = (error) => timeline.header.complain(error.message);

  composer.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = draft.value.trim();
    const { id } = timeline;
    if (!text || id === null || pending?.sending) return;
    if (pending?.text !== text) pending = { text, id: newId() };
    const sent = pending;
    sent.sending = true;
    try {
      await api.post(id, { text, id: sent.id });
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
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      composer.requestSubmit();
    }
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
