// Converts messages to timeline rows: groups authors, and pairs calls with results. No DOM.

import { author, dayOf } from "./format.js";

const TOGETHER = 5 * 60 * 1000; // milliseconds; messages of one author within this time share a heading

/**
 * `messages`: in order. `unfolded`: by the id of a summary, `{messages, more}` of its originals. `unread`: the id of the
 * first unseen message, or null. `run`: the active run, or null.
 * Returns `{rows, home}`. A row: `{key, message, archived, day, continued, unread, working, results, paired, edge}`.
 * `working`: whether its author may still be working on its tool calls. `results`:
 * the results by the index of the call's part; `paired`: the indices of result parts that are shown at their call;
 * `edge`: "start" or "end" for a row before or after the originals of a summary, which has no message.
 * `home`: by message id, the key of the row that shows it.
 */
export function buildRows({ messages, unfolded, unread, run }) {
  const { rows, home } = paired(sequence(messages, unfolded));
  let previous = null;
  let today = null;
  for (const row of rows) {
    const before = previous;
    previous = row.edge ? null : row;
    if (row.edge) continue;
    const { message, archived } = row;
    const day = archived ? today : dayOf(message.timestamp);
    row.day = day === today ? null : message.timestamp;
    today = day;
    row.unread = !archived && message.id === unread;
    row.working =
      message.status === "streaming" || (run && Date.parse(message.timestamp) >= Date.parse(run.started_at));
    row.after = before && !before.message.is_summary ? before.message.timestamp : null;
    row.continued = !row.day && !row.unread && follows(before, row);
  }
  return { rows, home };
}

/** The rows of all messages. The originals of an unfolded summary follow it, between two edge rows. */
function sequence(messages, unfolded, archived = null, rows = []) {
  for (const message of messages) {
    const key = archived ? `${archived}\n${message.id}` : message.id;
    rows.push({ key, message, archived, results: new Map(), paired: new Set(), edge: null });
    const originals = message.is_summary && unfolded.get(message.id);
    if (!originals || archived) continue;
    if (originals.more) rows.push({ key: `${message.id}\nstart`, message, archived: message.id, edge: "start" });
    sequence(originals.messages, unfolded, message.id, rows);
    const count = originals.messages.length;
    rows.push({ key: `${message.id}\nend`, message, archived: message.id, edge: "end", count });
  }
  return rows;
}

/**
 * Ids may repeat: a result belongs to the nearest earlier call of its id that has no result yet. A message that
 * contains only paired results gets no row.
 */
function paired(rows) {
  const calls = new Map();
  const home = new Map();
  const shown = [];
  for (const row of rows) {
    if (row.edge) {
      shown.push(row);
      continue;
    }
    let host = null;
    row.message.parts.forEach((part, index) => {
      if (part.type === "tool_use") {
        if (!calls.has(part.id)) calls.set(part.id, []);
        calls.get(part.id).push({ row, index });
      } else if (part.type === "tool_result") {
        const found = calls.get(part.tool_use_id) ?? [];
        const call = found.findLast((one) => !one.row.results.has(one.index)) ?? found.at(-1);
        if (!call || call.row.archived !== row.archived) return;
        const results = call.row.results.get(call.index) ?? [];
        call.row.results.set(call.index, [...results, { part, message: row.message, index }]);
        row.paired.add(index);
        host ??= call.row;
      }
    });
    const absorbed = host && row.paired.size === row.message.parts.length && !row.message.sources?.length;
    if (!absorbed) shown.push(row);
    const key = absorbed ? host.key : row.key;
    if (!home.has(row.message.id) || !row.archived) home.set(row.message.id, key);
  }
  return { rows: shown, home };
}

function follows(previous, row) {
  if (!previous || previous.archived !== row.archived) return false;
  const [earlier, later] = [previous.message, row.message];
  return (
    earlier.role === later.role &&
    later.role !== "system" &&
    !earlier.is_summary &&
    !later.is_summary &&
    author(earlier).key === author(later).key &&
    Math.abs(new Date(later.timestamp) - new Date(earlier.timestamp)) < TOGETHER
  );
}

/** Whether two rows look the same, so that the existing element can stay. */
export function sameRow(left, right) {
  if (left === right) return true;
  const [values, others] = [shownValues(left), shownValues(right)];
  return values.length === others.length && values.every((value, at) => value === others[at]);
}

const shownValues = ({ message, edge, count, day, continued, unread, working, after, paired, results = [] }) => [
  ...[message, edge, count, day, continued, unread, after, paired?.size, Boolean(working)],
  ...[...results].flatMap(([index, all]) => [index, ...all.map(({ part }) => part)]),
];
