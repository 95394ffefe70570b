// Connects the parts of the page.

import { api } from "./api.js";
import { bindDialog, saveAs } from "./dialogs.js";
import { byId, icon, setText } from "./dom.js";
import { openFeed } from "./feed.js";
import { number } from "./format.js";
import { bindKeys } from "./keys.js";
import { currentRoute, go } from "./route.js";
import { Search } from "./search.js";
import { Sidebar } from "./sidebar.js";
import { Timeline } from "./timeline.js";
import { Unread } from "./unread.js";
import { offerWrites } from "./writes.js";

const app = byId("app");
const help = byId("help");

let status = null;
let found = null; // the hit to open: {id, position, words}
let unseen = 0;

const unread = new Unread(new URL("../", import.meta.url).href);
const sidebar = new Sidebar({ unread, isSeen: (id) => timeline.id === id && timeline.atEnd, onCount: showCount });
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
  here: () => timeline.id,
  names: () => timeline.desk?.names ?? [],
  titleOf: (id) => sidebar.info(id)?.title || sidebar.info(id)?.label,
  onOpen: (hit, words) => {
    found = { id: hit.message.id, position: hit.message.position, words };
  },
});

// The page's title, and announcements to screen readers

function showCount(count) {
  unseen = count;
  showTitle();
}

function showTitle() {
  const conversation = timeline.id === null ? null : (timeline.conversation.info ?? sidebar.info(timeline.id));
  const label =
    conversation &&
    (conversation.title || conversation.label || sidebar.info(conversation.id)?.label || conversation.id);
  const name = label ?? status?.namespace ?? "Conversations";
  const title = `${unseen ? `(${unseen > 999 ? "999+" : number(unseen)}) ` : ""}${name} · redis-history`;
  if (document.title !== title) document.title = title;
}

let spoken = [];
let speaking = null;

/** Announce texts politely, and only as many as a listener can follow. */
function announce(texts) {
  spoken.push(...texts);
  speaking ??= setTimeout(() => {
    setText(byId("announcer"), spoken.length > 2 ? `${spoken.length} new messages` : spoken.join(". "));
    spoken = [];
    speaking = null;
  }, 800);
}

// The route in the URL

function follow() {
  const { conversation, message } = currentRoute();
  const opens = conversation !== timeline.id;
  app.dataset.view = conversation === null ? "list" : "conversation";
  byId("welcome").hidden = conversation !== null;
  byId("conversation").hidden = conversation === null;
  if (opens) {
    if (conversation === null) timeline.close();
    else timeline.open(conversation);
    sidebar.select(conversation);
    search.showScope();
  }
  if (conversation !== null) {
    if (message !== null) jump(message);
    else if (opens) timeline.scroller.focus({ preventScroll: true });
  }
  showTitle();
}

async function jump(id) {
  const known = found?.id === id ? found : {};
  found = null;
  const { conversation } = timeline;
  const there = await timeline.goTo(id, known).catch(() => false);
  if (!there && conversation === timeline.conversation) timeline.header.say("message_gone");
  timeline.list.drawn.get(timeline.current)?.element.focus({ preventScroll: true });
}

// The list of conversations, and the state of the connection

function listChanged(name, data) {
  if (name === "hello" || name === "reset") {
    sidebar.load().catch((error) => sidebar.trouble(error));
    if (timeline.opened) timeline.readInfo();
  } else if (name === "changed") {
    sidebar.on_changed(data);
    if (data.conversation === timeline.id) {
      const { conversation: id, last, kind, ...info } = data;
      timeline.info({ ...info, id });
      timeline.stream?.hurry(); // the conversation may just have been created
    }
  } else if (name === "gone") sidebar.on_gone(data);
}

async function begin() {
  try {
    status = await api.status();
  } catch (error) {
    sidebar.trouble(error);
    setTimeout(begin, 3000);
    return;
  }
  setText(byId("namespace"), status.namespace);
  byId("namespace").title = [status.address, `version ${status.version}`].filter(Boolean).join("\n");
  setText(
    byId("about"),
    `redis-history ${status.version}, namespace ${status.namespace}. ${status.read_only ? "This view is read-only." : ""}`,
  );
  search.setCapability(status.capabilities?.search);
  timeline.prefix = status.summary_prefix ?? "";
  if (timeline.desk) timeline.desk.prefix = timeline.prefix;
  if (!status.read_only) offerWrites(timeline);
  showTitle();
}

// Buttons and keys

function themeChosen(choice = window.pageTheme.choice) {
  const button = byId("theme-button");
  button.replaceChildren(icon(choice));
  button.setAttribute("aria-label", `Colours: ${choice === "system" ? "as the system" : choice}`);
  button.title = button.getAttribute("aria-label");
}

const zone = () => {
  if (search.active && (app.dataset.view === "list" || search.pane.contains(document.activeElement))) return "hits";
  if (timeline.id === null || byId("list-pane").contains(document.activeElement)) return "list";
  return "timeline";
};

const links = () => (zone() === "hits" ? search.links() : sidebar.links());

function stepLinks(direction) {
  const all = links();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement);
  const start = at < 0 ? all.findIndex((link) => link.hasAttribute("aria-current")) : at;
  const next = start < 0 ? (direction > 0 ? 0 : all.length - 1) : start + direction;
  focusLink(all[Math.min(all.length - 1, Math.max(0, next))]);
}

function focusLink(link) {
  link?.focus();
  link?.scrollIntoView({ block: "nearest" });
}

const step = (direction) => (zone() === "timeline" ? timeline.step(direction) : stepLinks(direction));

const narrow = () => matchMedia("(max-width: 760px)").matches;

/** Show the list at once, so that its items can be focused. */
function showList() {
  if (!narrow() || timeline.id === null) return;
  go({});
  follow();
}

/** Back to the list. In a wide window, the conversation stays open. */
function back() {
  const { id } = timeline;
  showList();
  focusLink(search.active ? search.links()[0] : (sidebar.items.get(id)?.link ?? sidebar.links()[0]));
}

bindKeys({
  does: {
    search: () => {
      showList();
      search.focus();
    },
    filter: () => {
      showList();
      search.leave();
      sidebar.filter.focus();
    },
    help: () => help.showModal(),
    theme: () => themeChosen(window.pageTheme.next()),
    step,
    arrow: (direction) => {
      if (zone() === "timeline") return false; // the key scrolls
      return step(direction);
    },
    toStart: () => (zone() === "timeline" ? timeline.toStart() : focusLink(links()[0])),
    toEnd: () => (zone() === "timeline" ? timeline.toEnd() : focusLink(links().at(-1))),
    enter: (target) => {
      if (target.closest("a, button, summary, pre") || zone() !== "timeline") return false;
      return timeline.toggle();
    },
    escape: () => {
      if (zone() === "timeline") back();
      else if (search.active) {
        search.leave();
        back();
      } else if (sidebar.filter.value) sidebar.clearFilter();
    },
    leaveField: (field) => {
      if (field === search.input) search.leave();
      if (field === sidebar.filter) sidebar.clearFilter();
      field.blur();
      if (timeline.id !== null) timeline.scroller.focus({ preventScroll: true });
    },
    fromField: (field, key) => {
      if (field === sidebar.filter) sidebar.render(); // apply the last input
      if (field === search.input && key === "Enter") search.run();
      else focusLink((search.active ? search : sidebar).links()[0]);
    },
  },
});

themeChosen();
byId("help-button").append(icon("help"));
byId("help-close").append(icon("close"));
byId("back").append(icon("back"));
byId("theme-button").addEventListener("click", () => themeChosen(window.pageTheme.next()));
byId("help-button").addEventListener("click", () => help.showModal());
byId("help-close").addEventListener("click", () => help.close());
help.addEventListener("click", (event) => event.target === help && help.close());
byId("back").addEventListener("click", back);
bindDialog("export", "save", (kind) =>
  saveAs(kind, timeline.id).catch((error) => timeline.header.complain(error.message)),
);
addEventListener("hashchange", follow);

openFeed({ onEvent: listChanged, onState: (state, error) => sidebar.link(state, error) });
begin();
follow();
