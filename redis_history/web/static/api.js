// The server's JSON interface. All URLs are relative to the page's mount point.

const BASE = new URL("../", import.meta.url);

export class ApiError extends Error {
  /** `status`: the HTTP status, or 0 without a response. `code`: the server's error code. */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** An id as a segment of a path. Percent-encoded characters that servers and proxies change go in base64url. */
function segment(id) {
  if (!/^[~.]|[\p{Cc}/\\]/u.test(id)) return encodeURIComponent(id);
  const bytes = Array.from(new TextEncoder().encode(id), (byte) => String.fromCharCode(byte)).join("");
  return `~${btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
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
  const told = await response.json().catch(() => ({})); // not JSON: perhaps the page of a proxy
  const message = told.detail ?? `The server answered ${response.status}.`;
  return new ApiError(response.status, told.code ?? "unknown", message);
}

async function ask(path, params, options = {}) {
  let response;
  try {
    response = await fetch(address(path, params), { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response.status === 204 ? null : response.json();
}

const write = (method, path, body) =>
  ask(path, {}, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const api = {
  status: () => ask(["status"]),
  conversations: (params, signal) => ask(["conversations"], params, { signal }),
  conversation: (id, signal) => ask(["conversations", id], {}, { signal }),
  messages: (id, params, signal) => ask(["conversations", id, "messages"], params, { signal }),
  message: (id, message) => ask(["conversations", id, "messages", message]),
  originals: (id, summary, before) => ask(["conversations", id, "messages", summary, "originals"], { before }),
  search: (params, signal) => ask(["search"], params, { signal }),
  post: (id, body) => write("POST", ["conversations", id, "messages"], body),
  rename: (id, title) => write("PATCH", ["conversations", id], { title }),
  remove: (id) => ask(["conversations", id], {}, { method: "DELETE" }),
};
