// Shows who is writing, and agents that wait for a tool.

import { byId, el } from "./dom.js";
import { author, shorten } from "./format.js";
import { waitingCalls } from "./rows.js";

const WAITS = 10 * 60_000; // milliseconds after which a call without a result no longer counts
const MOST = 3;

/** A user-chosen name, isolated so that it cannot change the direction of the text around it. */
const theirs = (name) => el("bdi", { text: shorten(name, 40) });

let timer = null;
let shown = "";

export function showActivity(rows) {
  clearTimeout(timer);
  const recent = ({ message }) => Date.now() - Date.parse(message.timestamp) < WAITS;
  const calls = new Map(
    waitingCalls(rows)
      .filter(recent)
      .map(({ message, part }) => [author(message).name, part.name]),
  );
  const live = rows.filter(({ edge, message }) => !edge && message.status === "streaming");
  for (const { message } of live) if (!calls.has(author(message).name)) calls.set(author(message).name, null);
  const state = JSON.stringify([...calls]);
  if (state !== shown) {
    shown = state;
    const told = [...calls]
      .slice(0, MOST)
      .map(([name, tool]) =>
        tool === null ? [theirs(name), " is writing"] : [theirs(name), " is running ", theirs(tool)],
      );
    if (calls.size > MOST) told.push([`${calls.size - MOST} more`]);
    byId("activity-text").replaceChildren(...told.flatMap((one, at) => (at ? [" · ", ...one] : one)));
  }
  byId("activity").classList.toggle("active", calls.size > 0);
  if (calls.size) timer = setTimeout(() => showActivity(rows), 10_000);
}
