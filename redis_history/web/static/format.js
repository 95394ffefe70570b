// Formats times, numbers and names in the browser's language.

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const SHORT_DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const SHORT_YEAR = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const NUMBER = new Intl.NumberFormat();
const COMPACT = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const SEGMENTS = new Intl.Segmenter();

const valid = (iso) => {
  const date = new Date(iso ?? NaN);
  return Number.isNaN(date.getTime()) ? null : date;
};

export const clock = (iso) => (valid(iso) ? CLOCK.format(valid(iso)) : "");
export const exact = (iso) => (valid(iso) ? EXACT.format(valid(iso)) : "");
export const number = (value) => NUMBER.format(value ?? 0);
export const compact = (value) => COMPACT.format(value ?? 0);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** A string that is the same for all times of one local day. */
export function dayOf(iso) {
  const date = valid(iso);
  return date ? `${date.getFullYear()}-${date.getMonth() + 1}-${date.getDate()}` : "";
}

export function dayName(iso) {
  const date = valid(iso);
  if (!date) return "";
  const days = Math.round((startOfDay(new Date()) - startOfDay(date)) / 86_400_000);
  if (days === 0) return "Today";
  return days === 1 ? "Yesterday" : DAY.format(date);
}

const startOfDay = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();

/** The age of a time, in a short form for lists. */
export function ago(iso) {
  const date = valid(iso);
  if (!date) return "";
  const seconds = (Date.now() - date.getTime()) / 1000;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (startOfDay(new Date()) === startOfDay(date)) return CLOCK.format(date);
  return (new Date().getFullYear() === date.getFullYear() ? SHORT_DAY : SHORT_YEAR).format(date);
}

/** The days from one time to another, such as "3 – 5 Mar 2026". */
export const days = (from, to) => (valid(from) && valid(to) ? SHORT_YEAR.formatRange(valid(from), valid(to)) : "");

/** The duration between two times; empty if it is too short to show. */
export function duration(from, to) {
  const seconds = (valid(to) - valid(from)) / 1000;
  if (!(seconds >= 0.05) || seconds > 86_400) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return seconds < 100 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

export function bytes(size) {
  if (!Number.isFinite(size)) return "";
  const unit = ["B", "kB", "MB", "GB", "TB"];
  let step = 0;
  while (size >= 1000 && step < unit.length - 1) {
    size /= 1000;
    step += 1;
  }
  return `${step && size < 10 ? size.toFixed(1) : Math.round(size)} ${unit[step]}`;
}

/** A hue from 0 to 359, derived from a text (FNV-1a). */
export function hue(text) {
  let hash = 0x811c9dc5;
  for (const unit of text) hash = Math.imul(hash ^ unit.codePointAt(0), 0x01000193);
  return ((hash >>> 0) * 137) % 360;
}

/** One or two letters for a name. */
export function initials(name) {
  const words = name
    .trim()
    .split(/[\s_\-./|]+/u)
    .filter(Boolean);
  const first = (word) => [...SEGMENTS.segment(word.slice(0, 24))][0]?.segment ?? "";
  if (!words.length) return "?";
  const letters = first(words[0]);
  return (/^\p{Script=Latin}/u.test(letters) && words.length > 1 ? letters + first(words[1]) : letters).toUpperCase();
}

/** At most so many characters, without splitting one. */
export function shorten(text, most) {
  if (text.length <= most) return text;
  const end = /[\uD800-\uDBFF]/.test(text[most - 1]) ? most - 1 : most;
  return `${text.slice(0, end).trimEnd()}…`;
}

export const oneLine = (text) => text.replace(/\s+/gu, " ").trim();

/** The author of a message: `{key, name, kind, hue}`. Without a participant, the role. */
export function author(message) {
  const who = message.participant;
  if (who) return { key: `${who.kind}:${who.id}`, name: who.display_name || who.id, kind: who.kind, hue: hue(who.id) };
  if (message.is_summary) return { key: "summary", name: "Summary", kind: "system", hue: 250 };
  const kind = { user: "user", system: "system" }[message.role] ?? "agent";
  const name = { user: "User", assistant: "Assistant", system: "System", tool: "Tool" }[message.role] ?? message.role;
  return { key: `role:${message.role}`, name, kind, hue: hue(message.role) };
}
