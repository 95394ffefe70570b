// The state of the page is in the URL after the #, so that links, bookmarks and the back button work.

/** `{conversation, message}`, each a string or null. Ids may contain any character; the URL contains them encoded. */
export function currentRoute() {
  const params = new URLSearchParams(location.hash.slice(1));
  return { conversation: params.get("conversation"), message: params.get("message") };
}

export function hashOf({ conversation = null, message = null }) {
  const params = new URLSearchParams();
  if (conversation !== null) params.set("conversation", conversation);
  if (message !== null) params.set("message", message);
  return `#${params}`;
}

export function go(route, { replace = false } = {}) {
  const hash = hashOf(route);
  if (hash === location.hash || (hash === "#" && !location.hash)) return dispatchEvent(new Event("hashchange"));
  if (replace) {
    history.replaceState(null, "", hash);
    return dispatchEvent(new Event("hashchange"));
  }
  location.hash = hash;
  return true;
}
