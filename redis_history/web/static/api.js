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

export function address(path, params = {}) {
  const url = new URL(`api/${path}`, BASE);
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** The error of a response other than 2xx. */
export async function failure(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // not JSON: perhaps the page of a proxy
  }
  return new ApiError(
    response.status,
    told.code ?? "unknown",
    told.message ?? `The server answered ${response.status}.`,
  );
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

function write(method, path, params, body) {
  return ask(path, params, {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body ?? {}),
  });
}

export const api = {
  status: () => ask("status"),
  conversations: (params, signal) => ask("conversations", params, { signal }),
  conversation: (conversation, signal) => ask("conversation", { conversation }, { signal }),
  messages: (conversation, params, signal) => ask("messages", { conversation, ...params }, { signal }),
  message: (conversation, id) => ask("message", { conversation, id }),
  archived: (conversation, summary, before) => ask("archived", { conversation, summary, before }),
  search: (params, signal) => ask("search", params, { signal }),
  post: (conversation, body) => write("POST", "messages", { conversation }, body),
  rename: (conversation, title) => write("PATCH", "conversation", { conversation }, { title }),
  remove: (conversation) => write("DELETE", "conversation", { conversation }),
};
