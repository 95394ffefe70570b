// The URLs of the server and of the page, and the server's JSON interface. All are relative to the page's mount point.

const LONGEST = 20_000; // milliseconds of a request
const BASE = new URL("../", import.meta.url);

class ApiError extends Error {
  /** `status`: the HTTP status, or 0 without a response. `code`: the server's error code. */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** An id as a segment of a path. Percent-encoded characters that servers and proxies change go in base64url. */
function segment(id) {
  if (!/^\.|[\p{Cc}/\\]/u.test(id)) return encodeURIComponent(id);
  const bytes = Array.from(new TextEncoder().encode(id), (byte) => String.fromCharCode(byte)).join("");
  return `=${btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** The URL of a path: `conversations`, an id, `messages`, an id, …; every second segment is an id. */
export function address(path, params = {}) {
  const url = new URL(`v1/${path.map((one, at) => (at % 2 ? segment(one) : one)).join("/")}`, BASE);
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** The error of a response other than 2xx. */
export async function failure(response) {
  const { detail, code } = await response.json().catch(() => ({})); // not JSON: perhaps the page of a proxy
  const error = new ApiError(response.status, code ?? "unknown", detail ?? `The server answered ${response.status}.`);
  if (error.status === 401) dispatchEvent(new CustomEvent("signedout", { detail: error }));
  return error;
}

async function request(path, params, { signal, ...options } = {}) {
  let response;
  try {
    const signals = [signal, AbortSignal.timeout(LONGEST)].filter(Boolean);
    const fixed = { credentials: "same-origin", cache: "no-store", signal: AbortSignal.any(signals) };
    response = await fetch(address(path, params), { ...fixed, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response.status === 204 ? null : response.json();
}

const write = (method, path, body) =>
  request(path, {}, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const api = {
  status: () => request(["status"]),
  conversations: (params, signal) => request(["conversations"], params, { signal }),
  conversation: (id, signal) => request(["conversations", id], {}, { signal }),
  rights: (conversation) => request(["rights"], { conversation }),
  usage: (params, signal) => request(["usage"], params, { signal }),
  approvals: () => request(["approvals"], { limit: 200 }),
  decide: (id, call, approved, reason) =>
    write("POST", ["conversations", id, "approvals", call], { approved, reason: reason || undefined }),
  messages: (id, params, signal) => request(["conversations", id, "messages"], params, { signal }),
  message: (id, message) => request(["conversations", id, "messages", message]),
  originals: (id, summary, before) => request(["conversations", id, "messages", summary, "originals"], { before }),
  search: (params, signal) => request(["search"], params, { signal }),
  post: (id, body) => write("POST", ["conversations", id, "messages"], body),
  rename: (id, title) => write("PATCH", ["conversations", id], { title }),
  fork: (id, through) => write("POST", ["conversations", id, "fork"], { through }),
  pin: (id, message, pinned) => write("PATCH", ["conversations", id, "messages", message], { pinned }),
  edit: (id, message, text) => write("POST", ["conversations", id, "messages", message, "edit"], { text }),
  askAgain: (id, message) => write("POST", ["conversations", id, "messages", message, "retry"], {}),
  removeMessage: (id, message) => request(["conversations", id, "messages", message], {}, { method: "DELETE" }),
  stop: (id, run) => write("POST", ["conversations", id, "stop"], { run_id: run }),
  turns: (signal) => request(["turns"], { limit: 1000 }, { signal }),
  retry: (id) => write("POST", ["conversations", id, "retry"], {}),
  drop: (id) => write("POST", ["conversations", id, "drop"], {}),
  remove: (id) => request(["conversations", id], {}, { method: "DELETE" }),
};

/** Exchange the token of `redis-history serve` for a cookie; false if it is not the token. */
export async function signIn(token) {
  const options = { method: "POST", body: new URLSearchParams({ token }), redirect: "manual" };
  return (await fetch(BASE, options)).type === "opaqueredirect";
}

/** The address of an image that stands in a message. */
export const imageAddress = (id, message, number) =>
  address(["conversations", id, "messages", message, "images", `${number}`]).href;

// The state of the page is in the URL after the #, so that links, bookmarks and the back button work.

const ROUTE = ["conversation", "message", "view", "user"];

/**
 * `{conversation, message}`, or `{view, user}` with the view "usage", perhaps of a user, or "approvals"; each a string
 * or null. Ids may contain any character; the URL contains them encoded.
 */
export function currentRoute() {
  const params = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(ROUTE.map((name) => [name, params.get(name)]));
}

export function hashOf(route) {
  const named = ROUTE.filter((name) => (route[name] ?? null) !== null);
  return `#${new URLSearchParams(named.map((name) => [name, route[name]]))}`;
}

export function go(route) {
  const hash = hashOf(route);
  if (hash === (location.hash || "#")) dispatchEvent(new Event("hashchange"));
  else location.hash = hash;
}
