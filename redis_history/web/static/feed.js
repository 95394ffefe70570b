// The stream of all conversations, shared by all tabs of this page: browsers allow few connections to a server, and
// each tab needs one for its open conversation. One tab, the leader, holds the stream and forwards its events.

import { address } from "./api.js";
import { Stream } from "./stream.js";

/** `onEvent(name, data)`: after "hello", read the list; later changes follow as events. `onState`: see Stream. */
export function openFeed({ onEvent, onState }) {
  const url = address(["events"]);
  const listen = (tell) =>
    new Stream({
      address: () => url,
      onEvent: (name, data) => {
        onEvent(name, data);
        tell({ name, data });
      },
      onState: (state, error) => {
        onState(state, error);
        tell({ state });
      },
    });
  // Both APIs need https or a loopback address. Elsewhere each tab has its own stream.
  if (!navigator.locks || !globalThis.BroadcastChannel) return listen(() => {});
  const channel = new BroadcastChannel(url.href);
  channel.onmessage = ({ data }) => {
    if (data.state) onState(data.state, null);
    else onEvent(data.name, data.data);
  };
  navigator.locks.query().then(({ held }) => {
    if (held.some((lock) => lock.name === url.href)) onEvent("hello", {}); // the leader's own "hello" is long past
  });
  // Held until the tab is closed; browsers do not suspend a tab that holds a lock.
  return navigator.locks.request(url.href, () => {
    listen((told) => channel.postMessage(told));
    return new Promise(() => {});
  });
}
