// The stream of all conversations, one for all tabs of this page: browsers allow few connections to a server, and each
// tab needs one for the conversation it shows. One tab holds the stream and tells the others.

import { address } from "./api.js";
import { Stream } from "./stream.js";

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
  let leads = false;
  let state = "opening";
  channel.onmessage = ({ data }) => {
    if (leads) {
      if (data.ask) channel.postMessage({ state, name: "hello", data: {} });
      return;
    }
    if (data.state) onState(data.state, null);
    if (data.name) onEvent(data.name, data.data);
  };
  channel.postMessage({ ask: true });
  // Granted when no other tab holds it; held until this tab is closed.
  navigator.locks.request(name, () => {
    leads = true;
    listen((told) => {
      state = told.state ?? state;
      channel.postMessage(told);
    });
    return new Promise(() => {});
  });
}
