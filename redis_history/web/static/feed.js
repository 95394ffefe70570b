// The stream of all conversations, one for all tabs of this page: browsers allow few connections to a server, and each
// tab needs one for the conversation it shows. One tab holds the stream and tells the others.

import { address } from "./api.js";
import { Stream } from "./stream.js";

const ANSWER = 2_000; // milliseconds; a tab that says nothing for so long when asked was put to sleep by its browser

/** `onEvent(name, data)`; a "hello" means: read the list now, what changes later will be told. `onState` as of Stream. */
export function openFeed({ onEvent, onState }) {
  const listen = (tell = () => {}) =>
    new Stream({
      address: () => address("events"),
      onEvent: (name, data) => {
        onEvent(name, data);
        tell({ name, data });
      },
      onState: (state, error) => {
        onState(state, error);
        tell({ state });
      },
    });
  const name = `redis-history:feed:${address("events").href}`;
  // Both are there on https and on the loopback address only; elsewhere each tab listens by itself.
  if (!navigator.locks || !globalThis.BroadcastChannel) {
    listen();
    return;
  }
  const channel = new BroadcastChannel(name);
  let stream = null; // of the tab that leads
  let state = "opening";
  let patience = null;

  channel.onmessage = ({ data }) => {
    if (stream) {
      if (data.ask) channel.postMessage({ state, name: "hello", data: {} });
      return;
    }
    if (data.ask) return;
    clearTimeout(patience);
    if (data.state) onState(data.state, null);
    if (data.name) onEvent(data.name, data.data);
  };

  /** Lead when no other tab does; with `steal`, at once. */
  const lead = (options = {}) => {
    navigator.locks
      .request(name, options, () => {
        clearTimeout(patience);
        stream = listen((told) => {
          state = told.state ?? state;
          channel.postMessage(told);
        });
        return new Promise(() => {}); // held until the tab is closed
      })
      .catch(() => {
        stream.close(); // another tab took it
        stream = null;
        lead();
      });
  };

  const ask = () => {
    if (stream || document.hidden) return;
    clearTimeout(patience);
    patience = setTimeout(() => lead({ steal: true }), ANSWER);
    channel.postMessage({ ask: true });
  };

  lead();
  ask();
  document.addEventListener("visibilitychange", ask);
}
