// Connects the parts of the page.

import { api, currentRoute, go, signIn } from "./api.js";
import { Approvals } from "./approvals.js";
import { offerExport, offerWrites } from "./dialogs.js";
import { byId, icon, setText } from "./dom.js";
import { number, setPrices, titleOf } from "./format.js";
import { Search } from "./search.js";
import { Sidebar, Unread } from "./sidebar.js";
import { openListStream } from "./stream.js";
import { Timeline } from "./timeline.js";
import { UsageView } from "./usage.js";

const app = byId("app");
const help = byId("help");

let status = null;
let openedHit = null; // the hit to open: {id, position, words}
let unseen = 0;

const unread = new Unread(new URL("../", import.meta.url).href);
const sidebar = new Sidebar({
  unread,
  isSeen: (id) => timeline.id === id && timeline.atEnd,
  onCount: (count) => {
    unseen = count;
    showTitle();
  },
});
const timeline = new Timeline({
  unreadOf: (info) => unread.count(info),
  announce,
  onInfo: showTitle,
  onSeen: () => {
    const info = sidebar.info(timeline.id);
    if (info && unread.count(info)) sidebar.show();
  },
});
const search = new Search({
  openId: () => timeline.id,
  names: () => timeline.folds?.names ?? [],
  knownTitle: (id) => sidebar.info(id)?.title || sidebar.info(id)?.label,
  onOpen: ({ message: { id, position } }, words) => {
    openedHit = { id, position, words };
  },
});

const usage = new UsageView();
const approvals = new Approvals({ titleOf: (id) => sidebar.info(id) && titleOf(sidebar.info(id)) });

// The page's title, and announcements to screen readers

function showTitle() {
  const { view } = app.dataset;
  let name = { usage: "Usage", approvals: "Approvals" }[view] ?? status?.namespace ?? "Conversations";
  if (timeline.id !== null) {
    const { title, label } = timeline.conversation.info ?? {};
    name = title || label || titleOf(sidebar.info(timeline.id) ?? { id: timeline.id });
  }
  const count = unseen > 999 ? "999+" : number(unseen);
  const title = `${unseen ? `(${count}) ` : ""}${name} · redis-history`;
  if (document.title !== title) document.title = title;
}

let announcements = [];
let announcing = null;

/** Announce texts politely, and only as many as a listener can follow. */
function announce(texts) {
  announcements.push(...texts);
  announcing ??= setTimeout(() => {
    const { length } = announcements;
    setText(byId("announcer"), length > 2 ? `${length} new messages` : announcements.join(". "));
    announcements = [];
    announcing = null;
  }, 800);
}

// The route in the URL

const VIEWS = { usage: ({ user }) => usage.open(user), approvals: () => approvals.load() };

function follow() {
  const route = currentRoute();
  const { message } = route;
  const view = Object.hasOwn(VIEWS, route.view ?? "") ? route.view : null;
  const conversation = view ? null : route.conversation;
  const opens = conversation !== timeline.id;
  const former = app.dataset.view;
  app.dataset.view = view ?? (conversation === null ? "list" : "conversation");
  byId("welcome").hidden = app.dataset.view !== "list";
  byId("conversation").hidden = conversation === null;
  for (const name of Object.keys(VIEWS)) byId(name).hidden = name !== view;
  for (const name of Object.keys(VIEWS)) byId(`${name}-link`).ariaCurrent = name === view ? "page" : null;
  if (opens) {
    if (conversation === null) timeline.close();
    else timeline.open(conversation);
    sidebar.select(conversation);
    search.showScope();
    readRights();
  }
  if (view) {
    VIEWS[view](route);
    if (view !== former) byId(`${view}-title`).focus({ preventScroll: true });
  } else if (conversation !== null && message !== null) jump(message);
  else if (conversation !== null && opens) timeline.scroller.focus({ preventScroll: true });
  showTitle();
}

/** Ask the server what the user may do here. CSS shows the buttons of these rights only. */
async function readRights() {
  const { id } = timeline;
  const none = () => ({ rights: [] });
  const [all, here] = await Promise.all([api.rights().catch(none), id === null ? none() : api.rights(id).catch(none)]);
  if (id !== timeline.id) return;
  app.dataset.rights = [...all.rights, ...here.rights].join(" ");
  if (timeline.conversation?.info) timeline.info({});
}

async function jump(id) {
  const known = openedHit?.id === id ? openedHit : {};
  openedHit = null;
  const { conversation } = timeline;
  const found = await timeline.goTo(id, known).catch(() => false);
  if (!found && conversation === timeline.conversation) timeline.header.say("message_gone");
  timeline.list.drawn.get(timeline.current)?.element.focus({ preventScroll: true });
}

// The list of conversations, and the state of the connection

function listChanged(name, data) {
  if (name === "away") sidebar.link("waiting", { away: true });
  if (name === "back") sidebar.link("open");
  if (name === "hello" || name === "reset") {
    sidebar.load().catch((error) => sidebar.fail(error));
    approvals.soon();
    readRights();
    if (timeline.opened) timeline.readInfo();
  } else if (name === "changed") {
    sidebar.on_changed(data);
    if (data.kind !== "run") approvals.soon();
    if (data.conversation === timeline.id) {
      const { conversation: id, last, kind, ...info } = data;
      timeline.info({ ...info, id });
      timeline.stream?.hurry(); // the conversation may just have been created
    }
  } else if (name === "gone") {
    sidebar.on_gone(data);
    approvals.soon();
  }
}

async function begin() {
  try {
    status = await api.status();
  } catch (error) {
    sidebar.fail(error);
    setTimeout(begin, 3000);
    return;
  }
  const { namespace, address, version, read_only: readOnly, capabilities, summary_prefix: prefix, prices } = status;
  setPrices(prices);
  setText(byId("namespace"), namespace);
  byId("namespace").title = [address, `version ${version}`].filter(Boolean).join("\n");
  const rights = readOnly ? " This view is read-only." : "";
  setText(byId("about"), `redis-history ${version}, namespace ${namespace}.${rights}`);
  search.setCapability(capabilities?.search);
  timeline.prefix = prefix ?? "";
  if (timeline.folds) timeline.folds.prefix = timeline.prefix;
  if (timeline.conversation?.info) timeline.info({}); // with its cost
  showTitle();
}

// Signed out

const door = byId("sign-in");

/** Offer to sign in again: with the token of `redis-history serve`, or at the address that the application gave. */
function offerSignIn({ code }) {
  if (door.open) return;
  const hasToken = code === "no_token";
  const link = status?.sign_in ?? null;
  const text = hasToken ? "Enter the token that redis-history serve printed." : "Your session has ended.";
  setText(byId("sign-in-text"), text);
  byId("sign-in-link").hidden = hasToken || link === null;
  if (link !== null) byId("sign-in-link").href = link;
  for (const one of door.querySelectorAll("input, button")) one.hidden = !hasToken;
  for (const one of document.querySelectorAll("dialog[open]")) one.close();
  door.showModal();
}

door.addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = door.querySelector("input");
  const isSignedIn = await signIn(field.value.trim()).catch(() => false);
  field.value = "";
  if (!isSignedIn) {
    setText(byId("sign-in-text"), "That is not the token of this server.");
    return;
  }
  door.close();
  dispatchEvent(new Event("online")); // the streams try again now
  begin();
  follow();
});
addEventListener("signedout", ({ detail }) => offerSignIn(detail));

/** The state of the stream of the list. Without the right to list, the user of an application is signed out. */
function listLinked(state, error) {
  sidebar.link(state, error);
  if (state === "refused" && error?.status === 403 && status?.sign_in) offerSignIn(error);
}

// Navigation

/** Where keys act: on search results ("hits"), on the list of conversations ("list"), or on the timeline. */
function zone() {
  if (app.dataset.view in VIEWS && byId("main").contains(document.activeElement)) return "view";
  if (search.active && (app.dataset.view === "list" || search.pane.contains(document.activeElement))) return "hits";
  if (timeline.id === null || byId("list-pane").contains(document.activeElement)) return "list";
  return "timeline";
}

const links = () => (zone() === "hits" ? search : sidebar).links(); // also of the other views

function focusLink(link) {
  link?.focus();
  link?.scrollIntoView({ block: "nearest" });
}

function step(direction) {
  if (zone() === "timeline") {
    timeline.step(direction);
    return;
  }
  const all = links();
  const focused = all.indexOf(document.activeElement);
  const start = focused < 0 ? all.findIndex((link) => link.hasAttribute("aria-current")) : focused;
  const next = start < 0 && direction < 0 ? all.length - 1 : start + direction;
  focusLink(all[Math.min(all.length - 1, Math.max(0, next))]);
}

/** Show the list at once, so that its items can be focused. */
function showList() {
  if (!matchMedia("(max-width: 760px)").matches || timeline.id === null) return;
  go({});
  follow();
}

/** Back to the list. In a wide window, the conversation stays open. */
function back() {
  const { id } = timeline;
  if (app.dataset.view in VIEWS) {
    go({});
    follow();
  }
  showList();
  focusLink(search.active ? search.links()[0] : (sidebar.items.get(id)?.link ?? sidebar.links()[0]));
}

function leaveField(field) {
  if (field === search.input) search.close();
  if (field === sidebar.filter) sidebar.clearFilter();
  field.blur();
  if (timeline.id !== null) timeline.scroller.focus({ preventScroll: true });
}

/** From a field to the first link, once the list is loaded. */
async function leaveToLinks(field) {
  if (field === sidebar.filter) {
    await sidebar.loaded;
    sidebar.render(); // apply the last input
    if (document.activeElement !== field) return;
  }
  focusLink((search.active ? search : sidebar).links()[0]);
}

// Keys. A function that returns false leaves the key to the browser.

const KEYS = {
  "/": () => {
    showList();
    search.focus();
  },
  f: () => {
    showList();
    search.close();
    sidebar.filter.focus();
  },
  "?": () => help.showModal(),
  t: () => showTheme(window.pageTheme.next()),
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => zone() !== "timeline" && step(1),
  ArrowUp: () => zone() !== "timeline" && step(-1),
  g: () => (zone() === "timeline" ? timeline.toStart() : focusLink(links()[0])),
  G: () => (zone() === "timeline" ? timeline.toEnd() : focusLink(links().at(-1))),
  Enter: (target) => !target.closest("a, button, summary, pre") && zone() === "timeline" && timeline.toggle(),
  Escape: () => {
    if (["timeline", "view"].includes(zone())) back();
    else if (search.active) {
      search.close();
      back();
    } else if (sidebar.filter.value) sidebar.clearFilter();
  },
};
KEYS.Home = KEYS.g;
KEYS.End = KEYS.G;

/** Keys in a field are its own, except for those that leave it. */
function keyOfField({ target, key }) {
  if (key === "Escape") return () => leaveField(target);
  if (target === search.input && key === "Enter") return () => search.run();
  const leaves = [search.input, sidebar.filter].includes(target) && ["ArrowDown", "Enter"].includes(key);
  return leaves ? () => leaveToLinks(target) : null;
}

// A focus that the page sets is marked only for those who move it with the keyboard.
addEventListener("keydown", ({ key }) => key === "Tab" && (document.body.dataset.keys = ""));
addEventListener("pointerdown", () => delete document.body.dataset.keys);

document.addEventListener("keydown", (event) => {
  const combined = event.ctrlKey || event.metaKey || event.altKey || event.isComposing;
  if (combined || document.querySelector("dialog[open]")) return;
  const isField = event.target.closest("input, textarea, select, [contenteditable]");
  const action = isField ? keyOfField(event) : Object.hasOwn(KEYS, event.key) && KEYS[event.key];
  if (action && action(event.target) !== false) event.preventDefault();
});

// Buttons

function showTheme(choice) {
  const button = byId("theme-button");
  button.replaceChildren(icon(choice));
  button.title = button.ariaLabel = `Colors: ${choice === "system" ? "as the system" : choice}`;
}

showTheme(window.pageTheme.choice);
for (const [id, image, action] of [
  ["help-button", "help", KEYS["?"]],
  ["help-close", "close", () => help.close()],
  ["approvals-link", "inbox", () => {}],
  ["usage-link", "chart", () => {}],
]) {
  byId(id).append(icon(image));
  byId(id).addEventListener("click", action);
}
for (const one of document.querySelectorAll(".back")) {
  one.append(icon("back"));
  one.addEventListener("click", back);
}
byId("theme-button").addEventListener("click", KEYS.t);
help.addEventListener("click", (event) => event.target === help && help.close());
offerExport(timeline);
addEventListener("hashchange", follow);

openListStream({ onEvent: listChanged, onState: listLinked });
begin();
follow();
offerWrites(timeline); // after `follow`, whose events it also gets
if (timeline.id === null) readRights();
