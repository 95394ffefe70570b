import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const api = "/api/chat";
const id = (location.hash ||= `#${crypto.randomUUID()}`).slice(1); // the address of the chat

function Chat({ messages: stored }) {
  const [text, setText] = useState("");
  const { messages, sendMessage, regenerate, status, error } = useChat({
    id,
    messages: stored,
    resume: true, // an answer that is being written goes on here
    transport: new DefaultChatTransport({ api }),
  });
  const busy = status === "submitted" || status === "streaming";
  const stop = () => fetch(`${api}/${encodeURIComponent(id)}/stop`, { method: "POST" });

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
          {error.message} <button onClick={() => regenerate()}>Ask again</button>
        </p>
      )}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        {busy ? <button type="button" onClick={stop}>Stop</button> : <button disabled={!text}>Send</button>}
      </form>
    </>
  );
}

const response = await fetch(`${api}/${encodeURIComponent(id)}/messages`);
createRoot(document.getElementById("chat")).render(<Chat messages={await response.json()} />);
