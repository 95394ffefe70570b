import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";

const api = "/api/chat";
const id = (location.hash ||= `#${crypto.randomUUID()}`).slice(1); // the address of the chat

// The events of the live view after which this page reads the chat again. "open": its stream has begun.
const kinds = ["open", "appended", "updated", "deleted", "cleared", "restored", "gone", "run", "reset"];

async function read() {
  const response = await fetch(`${api}/${encodeURIComponent(id)}/messages`);
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  return response.json();
}

function Chat({ stored }) {
  const [text, setText] = useState("");
  const { messages, setMessages, sendMessage, regenerate, resumeStream, status, error } = useChat({
    id,
    messages: stored,
    resume: true, // an answer that is being written goes on here
    onError: (error) => isLost(error) && setTimeout(reconnect, 1000),
    transport: new DefaultChatTransport({
      api,
      // The server has the others: a long chat with images would soon be too large to send.
      prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
        body: { ...body, id, trigger, messageId, messages: messages.slice(-1) },
      }),
    }),
  });
  const page = useRef({ atEnd: true, known: 0 }).current;
  const busy = (page.busy = status === "submitted" || status === "streaming");
  const stop = () => fetch(`${api}/${encodeURIComponent(id)}/stop`, { method: "POST" });

  // The network was interrupted, the server restarts, or others have written. An answer that is being written goes on.
  async function reconnect() {
    if (page.reading) return;
    page.reading = true;
    try {
      const found = await read();
      if (!page.busy) {
        setMessages(found);
        await resumeStream();
      }
    } catch {
      setTimeout(reconnect, 1000);
    }
    page.reading = false;
    setReads((count) => count + 1);
  }

  // The protocol reports only the answers that this tab asks for. The live view reports every change of the chat.
  const [changes, setChanges] = useState(0);
  const [reads, setReads] = useState(0);
  useEffect(() => {
    let events;
    function follow() {
      events?.close();
      events = document.hidden ? null : new EventSource(`/history/v1/conversations/${encodeURIComponent(id)}/events`);
      for (const kind of kinds) events?.addEventListener(kind, () => setChanges((count) => count + 1));
    }
    follow();
    document.addEventListener("visibilitychange", follow); // all tabs of a browser share six connections
  }, []);
  useEffect(() => {
    if (busy || page.reading || page.known === changes) return;
    page.known = changes;
    reconnect();
  }, [changes, reads, busy]);

  // The page stays at its end, unless the user has scrolled up.
  useEffect(() => {
    const root = document.documentElement;
    addEventListener("scroll", () => (page.atEnd = root.scrollHeight - root.clientHeight - scrollY < 40));
  }, []);
  useLayoutEffect(() => {
    if (page.atEnd) scrollTo(0, document.documentElement.scrollHeight);
  });

  // Answers the last question again in a fork: this chat stays as it is.
  async function branch() {
    const fork = crypto.randomUUID();
    const asked = messages.findLast((message) => message.role === "user");
    const body = JSON.stringify({ id, messages: [asked], trigger: "regenerate-message", fork });
    await fetch(api, { method: "POST", headers: { "Content-Type": "application/json" }, body });
    location.hash = fork;
  }

  function send(event) {
    event.preventDefault();
    page.atEnd = true;
    sendMessage({ text });
    setText("");
  }

  return (
    <>
      {messages.map((message) => (
        <p key={message.id} className={message.role}>
          {message.parts.map((part, index) => part.type === "text" && <span key={index}>{part.text}</span>)}
        </p>
      ))}
      {error && (
        <p role="alert">
          {isLost(error) ? "Reconnecting …" : error.message}{" "}
          {!isLost(error) && <button onClick={() => regenerate()}>Ask again</button>}
        </p>
      )}
      {!busy && !error && messages.at(-1)?.role === "assistant" && (
        <nav>
          <button onClick={() => regenerate()}>Answer again</button>
          <button onClick={branch}>Answer in a new chat</button>
        </nav>
      )}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        {busy ? <button type="button" onClick={stop}>Stop</button> : <button disabled={!text}>Send</button>}
      </form>
    </>
  );
}

addEventListener("hashchange", () => location.reload());

// What fetch raises, and the error of a stream that the server has cut.
const isLost = (error) => error instanceof TypeError || error.message.startsWith("Reconnect");

createRoot(document.getElementById("chat")).render(<Chat stored={await read()} />);
