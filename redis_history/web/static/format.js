// Formats times, numbers and names in the browser's language.

const formatter = (options) => new Intl.DateTimeFormat(undefined, options);
const CLOCK = formatter({ hour: "2-digit", minute: "2-digit" });
const EXACT = formatter({ dateStyle: "full", timeStyle: "long" });
const DAY = formatter({ weekday: "long", day: "numeric", month: "long", year: "numeric" });
const SHORT_DAY = formatter({ day: "numeric", month: "short" });
const SHORT_YEAR = formatter({ day: "numeric", month: "short", year: "numeric" });
const UTC_DAY = formatter({ day: "numeric", month: "short", timeZone: "UTC" });
const NUMBER = new Intl.NumberFormat();
const COMPACT = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const BYTES = ["B", "kB", "MB", "GB", "TB"];
const SEGMENTS = new Intl.Segmenter();
const ROLES = { user: "User", assistant: "Assistant", system: "System", tool: "Tool" };

const dateOf = (iso) => {
  const date = new Date(iso ?? NaN);
  return Number.isNaN(date.getTime()) ? null : date;
};
const dayStart = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();

export const clock = (iso) => (dateOf(iso) ? CLOCK.format(dateOf(iso)) : "");
export const exact = (iso) => (dateOf(iso) ? EXACT.format(dateOf(iso)) : "");
export const number = (value) => NUMBER.format(value ?? 0);
export const compact = (value) => COMPACT.format(value ?? 0);
export const plural = (count, one) => `${number(count)} ${one}${count === 1 ? "" : "s"}`;

/** A value that is the same for all times of one local day. */
export const dayOf = (iso) => (dateOf(iso) ? dayStart(dateOf(iso)) : null);

export function dayName(iso) {
  const date = dateOf(iso);
  if (!date) return "";
  const days = Math.round((dayStart(new Date()) - dayStart(date)) / 86_400_000);
  return ["Today", "Yesterday"][days] ?? DAY.format(date);
}

/** The age of a time, in a short form for lists. */
export function ago(iso) {
  const date = dateOf(iso);
  if (!date) return "";
  const now = new Date();
  const seconds = (now - date) / 1000;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (dayStart(now) === dayStart(date)) return CLOCK.format(date);
  return (now.getFullYear() === date.getFullYear() ? SHORT_DAY : SHORT_YEAR).format(date);
}

/** A day in UTC such as 2026-01-31, and its name. */
export const utcDay = (date) => date.toISOString().slice(0, 10);
export const utcDayName = (day) => UTC_DAY.format(new Date(`${day}T00:00Z`));

/** The days from one time to another, such as "3 – 5 Mar 2026". */
export const days = (from, to) => (dateOf(from) && dateOf(to) ? SHORT_YEAR.formatRange(dateOf(from), dateOf(to)) : "");

/** The duration between two times; empty if it is too short to show. */
export function duration(from, to) {
  const seconds = (dateOf(to) - dateOf(from)) / 1000;
  if (!(seconds >= 0.05) || seconds > 86_400) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return seconds < 100 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

export function bytes(size) {
  if (!Number.isFinite(size)) return "";
  const step = Math.max(0, Math.min(BYTES.length - 1, Math.floor(Math.log10(size) / 3)));
  const value = size / 1000 ** step;
  return `${step && value < 10 ? value.toFixed(1) : Math.round(value)} ${BYTES[step]}`;
}

let prices = {}; // of a million tokens by model: input, output, cached input

/** The prices that the application gave the server, which knows none itself. */
export const setPrices = (given) => {
  prices = given ?? {};
};

/** The price of a model, or of the same name with a date. Totals have no model. */
function priceOf(model) {
  const isOf = (name) => model === name || (model?.startsWith(name) && /^[-@]\d{4}/.test(model.slice(name.length)));
  const name = Object.keys(prices).find(isOf);
  return name ? { price: prices[name], about: "" } : { price: prices["*"], about: "≈ " };
}

/** What tokens cost, as reported or else by the prices; "" if neither is known. */
export function costOf({ cost, model, input_tokens: read, output_tokens: written, cached_tokens: cached = 0 }) {
  if (cost > 0) return money(cost);
  const { price, about } = priceOf(model);
  if (!price || !(read + written)) return "";
  return about + money(((read - cached) * price[0] + written * price[1] + cached * price[2]) / 1e6);
}

const money = (value) => `$${value >= 1 ? NUMBER.format(Number(value.toFixed(2))) : Number(value.toPrecision(2))}`;

/** A hue from 0 to 359, derived from a text (FNV-1a). */
export function hue(text) {
  let hash = 0x811c9dc5;
  for (const unit of text) hash = Math.imul(hash ^ unit.codePointAt(0), 0x01000193);
  return ((hash >>> 0) * 137) % 360;
}

/** One or two letters for a name. */
export function initials(name) {
  const words = name.split(/[\s_\-./|]+/u).filter(Boolean);
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

const oneLine = (text) => text.replace(/\s+/gu, " ").trim();

/** A text on one line, with at most so many characters. */
export const brief = (text, most) => shorten(oneLine(text), most);

/** The title of a conversation, or the beginning of its first message, or its id. */
export const titleOf = ({ title, label, id }) => title || label || id;

/** An owner as the server reads it in a text: 1 is the number, and "1" in double quotes the text. */
export const ownerText = (owner) =>
  typeof owner === "string" && /^-?\d+$|^".*"$/s.test(owner) ? JSON.stringify(owner) : `${owner}`;

export function ownerOf(text) {
  if (/^-?\d+$/.test(text)) return Number(text);
  try {
    const value = JSON.parse(text);
    return typeof value === "string" ? value : text;
  } catch {
    return text;
  }
}

export const roleName = (role) => ROLES[role] ?? role;

/** The author of a message: `{key, name, kind, hue}`. Without a participant, the role. */
export function author(message) {
  const who = message.participant;
  if (who) return { key: `${who.kind}:${who.id}`, name: who.display_name || who.id, kind: who.kind, hue: hue(who.id) };
  if (message.is_summary) return { key: "summary", name: "Summary", kind: "system", hue: 250 };
  const kind = ["user", "system"].includes(message.role) ? message.role : "agent";
  return { key: `role:${message.role}`, name: roleName(message.role), kind, hue: hue(message.role) };
}
