// The stream of all conversations, shared by all tabs of this page: browsers allow few connections to a server, and
// each tab needs one for its open conversation. One tab, the leader, holds the stream and forwards its events.

import { address } from "./api.js";
import { Stream } from "./stream.js";

const ANSWER = 2_000; // milliseconds; a leader that does not answer within this time was suspended by the browser

/** `onEvent(name, data)`: after "hello", read the list; later changes follow as events. `onState`: see Stream. */
export function openFeed({ onEvent, onState }) {
  const listen = (tell = () => {}) =>
    new Stream({
      address: () => address(["events"]),
      onEvent: (name, data) => {
        onEvent(name, data);
        tell({ name, data });
      },
      onState: (state, error) => {
        onState(state, error);
        tell({ state });
      },
    });
  const name = `redis-history:feed:${address(["events"]).href}`;
  // Both APIs need https or a loopback address. Elsewhere each tab has its own stream.
  if (!navigator.locks || !globalThis.BroadcastChannel) {
    listen();
    return;
  }
  const channel = new BroadcastChannel(name);
  let stream = null; // the stream of the leader
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

  /** Become the leader when there is none; with `steal`, at once. */
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
        stream.close(); // another tab took the lead
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
