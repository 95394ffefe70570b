import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const api = "/api/chat";
const id = (location.hash ||= `#${crypto.randomUUID()}`).slice(1); // the address of the chat

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
  const busy = status === "submitted" || status === "streaming";
  const stop = () => fetch(`${api}/${encodeURIComponent(id)}/stop`, { method: "POST" });

  // The network is interrupted, or the server restarts. The answer goes on meanwhile.
  async function reconnect() {
    try {
      setMessages(await read());
      resumeStream();
    } catch {
      setTimeout(reconnect, 1000);
    }
  }

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
