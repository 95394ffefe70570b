"""AI SDK (Vercel): an answer as a UI message stream, for `useChat` with `DefaultChatTransport` and `resume: true`.

::

    @app.get("/api/chat/{chat}/stream")
    async def stream(chat: str):
        if (await store.get_run(chat) or done).is_active: ...
        return StreamingResponse(sse(ui_message_stream(store, chat)), headers=HEADERS)

`redis_history.web.ChatEndpoints` has all endpoints of a chat.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from typing import Any, Final

from redis_history.errors import ConflictError
from redis_history.formats.json_form import dumps
from redis_history.formats.vercel_ai import ui_message_of
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.values import Message, Position
from redis_history.values._validation import check_store
from redis_history.web._answers import ERRORS, Answer
from redis_history.web._questions import follow

__all__ = ["HEADERS", "sse", "ui_message_stream"]

#: The headers of a UI message stream. The last one keeps nginx from buffering it.
HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-vercel-ai-ui-message-stream": "v1",
    "x-accel-buffering": "no",
}

#: The last event of a UI message stream.
DONE: Final = b"data: [DONE]\n\n"
#: The error with which a stream ends that is cut before its answer ends.
RECONNECT: Final = "Reconnect: the stream was cut before the end of the answer."
Chunk = dict[str, Any]


async def ui_message_stream(
    store: AsyncHistoryStore, conversation_id: str, *, run_id: str | None = None, after: Position | None = None
) -> AsyncIterator[Chunk]:
    """The chunks of a UI message stream: the answer of a run from its start, as it is written, until the run ends.

    It ends with `finish`, with `error` if the run failed or was interrupted, or with `abort` if it was stopped. Empty
    chunks, `{}`, are sent during pauses: see `sse`. The answer is a single UI message with a step for each assistant
    message of the run. It has the id of the first of them, and equals the result of `to_vercel_ai` for the stored
    messages.

    `run_id`: the run to follow, also if it still waits for its turn; None: the active run. Without an active run, no
    chunks follow. `after`: the position of the message that it answers. Raises ConfigurationError for another store
    than an AsyncHistoryStore; ConflictError if a part that was sent is edited or removed: then the client has to read
    the messages again, which `sse` reports to it.
    """
    check_store(store, "ui_message_stream", AsyncHistoryStore)
    async for chunks in chunks_of(store, conversation_id, run_id=run_id, after=after):
        for chunk in chunks or [{}]:
            yield chunk


async def chunks_of(
    store: AsyncHistoryStore,
    conversation_id: str,
    *,
    message_id: str | None = None,
    calls: Collection[str] = (),
    **options: Any,
) -> AsyncIterator[list[Chunk]]:
    """The chunks of `ui_message_stream` in groups of those that are available together. `message_id`: the id of the
    client's UI message that the answer continues, with these `calls`; None: the message is new."""
    writer = _Writer(message_id, calls)
    async for answer in follow(store, conversation_id, **options):
        yield list(writer.chunks(answer))


async def sse(chunks: AsyncIterator[Chunk]) -> AsyncGenerator[bytes, None]:
    """Server-sent events for the chunks, with `[DONE]` at the end. An empty chunk becomes a comment, which keeps the
    connection open. If a part that was sent is edited or removed, they end with an error that begins with "Reconnect"
    instead."""
    try:
        async for chunk in chunks:
            yield frame(chunk) if chunk else b": ping\n\n"
    except ConflictError:
        yield CUT
    else:
        yield DONE


def frame(chunk: Chunk) -> bytes:
    """A server-sent event."""
    return b"data: " + dumps(chunk) + b"\n\n"


#: The last event of a stream that is cut.
CUT: Final = frame({"type": "error", "errorText": RECONNECT})


class _Writer:
    """Writes the new content of a UI message since the last call."""

    def __init__(self, message_id: str | None, calls: Collection[str]) -> None:
        self._message_id = message_id
        self._calls = calls
        self._started = False
        self._in_step = False
        self._parts: list[_Part] = []

    def chunks(self, answer: Answer) -> Iterator[Chunk]:
        try:
            yield from self._content(answer)
        except ConflictError:
            if not answer.done or answer.end != "stopped":
                raise
            # A regeneration stops the former answer and removes it, and a slow reader sees both at the same time.
            for part in self._parts:
                yield from part.close()
        if answer.done:
            yield from self._end(answer)

    def _content(self, answer: Answer) -> Iterator[Chunk]:
        if messages := _shown(answer):
            message = ui_message_of(messages)
            yield from self._start(message)
            yield from self._write(message["parts"], answer.done)
            if answer.done and "metadata" in message:
                yield {"type": "message-metadata", "messageMetadata": message["metadata"]}
        elif self._parts:
            raise _changed()

    def _start(self, message: Chunk) -> Iterator[Chunk]:
        if not self._started:
            self._started = True
            metadata = {"messageMetadata": message["metadata"]} if "metadata" in message else {}
            yield {"type": "start", "messageId": self._message_id or message["id"], **metadata}

    def _write(self, blocks: list[Chunk], done: bool) -> Iterator[Chunk]:
        if len(blocks) < len(self._parts):
            raise _changed()
        for index, block in enumerate(blocks):
            kind = block["type"]
            if index == len(self._parts):
                self._parts.append(_Part(str(index), block, is_known=block.get("toolCallId") in self._calls))
                if kind == "step-start" or not self._in_step:
                    if self._in_step:
                        yield {"type": "finish-step"}
                    self._in_step = True
                    yield {"type": "start-step"}
            if not self._parts[index].is_of(block):
                raise _changed()
            if kind != "step-start":
                yield from self._parts[index].chunks(block, done or index < len(blocks) - 1)

    def _end(self, answer: Answer) -> Iterator[Chunk]:
        if not self._started:
            yield {"type": "start"}
        if self._in_step:
            yield {"type": "finish-step"}
        if answer.end == "stopped":
            reason = answer.run.stop_reason if answer.run is not None else None
            yield {"type": "abort", **({"reason": reason} if reason else {})}
        elif answer.end in ERRORS:
            yield {"type": "error", "errorText": ERRORS[answer.end]}
        else:
            yield {"type": "finish"}


class _Part:
    """The written text of one part of a UI message."""

    def __init__(self, id_: str, block: Chunk, *, is_known: bool) -> None:
        self._id = id_
        self._kind = block["type"], block.get("toolCallId")
        self._sent = ""
        self._chunks: dict[str, Chunk] = {}  # sent chunks by their subject
        self._is_known = is_known  # only the result of a call of the client is new

    def is_of(self, block: Chunk) -> bool:
        return self._kind == (block["type"], block.get("toolCallId"))

    def chunks(self, block: Chunk, ended: bool) -> Iterator[Chunk]:
        kind = block["type"]
        if kind in ("text", "reasoning"):
            yield from self._text(kind, block, ended)
        elif kind == "dynamic-tool" or kind.startswith("tool-"):
            yield from self._call(block)
        else:
            # Files, sources and data have the same form in a stream, but for the name of a file.
            chunk = {key: value for key, value in block.items() if (kind, key) != ("file", "filename")}
            # A client replaces data of the same id.
            yield from self._new("part", chunk, again=kind.startswith("data-") and block.get("id") is not None)

    def _new(self, what: str, chunk: Chunk, *, again: bool = False) -> Iterator[Chunk]:
        """Yield a chunk that was not sent. Raises ConflictError if another chunk was, unless it can be sent `again`."""
        sent = self._chunks.get(what)
        if sent is None or (again and sent != chunk):
            self._chunks[what] = chunk
            yield chunk
        elif sent != chunk:
            raise _changed()

    def _text(self, kind: str, block: Chunk, ended: bool) -> Iterator[Chunk]:
        text = block["text"]
        yield from self._new("start", {"type": f"{kind}-start", "id": self._id})
        if not text.startswith(self._sent) or (len(text) > len(self._sent) and "end" in self._chunks):
            # Frameworks strip a text at its end. For a reader it is the same.
            if text.split() != self._sent.split():
                raise _changed()
        elif len(text) > len(self._sent):
            yield {"type": f"{kind}-delta", "id": self._id, "delta": text[len(self._sent) :]}
            self._sent = text
        if ended:
            yield from self._new("end", {"type": f"{kind}-end", "id": self._id, **_taken(block, "providerMetadata")})

    def close(self) -> Iterator[Chunk]:
        """Yield the end of a text that is still open."""
        kind, _ = self._kind
        if kind in ("text", "reasoning") and "end" not in self._chunks:
            yield from self._new("end", {"type": f"{kind}-end", "id": self._id})

    def _call(self, block: Chunk) -> Iterator[Chunk]:
        dynamic = block["type"] == "dynamic-tool"
        call: Chunk = {"toolCallId": block["toolCallId"], **({"dynamic": True} if dynamic else {})}
        if not self._is_known:
            asked = {
                "type": "tool-input-available",
                **call,
                "toolName": block["toolName"] if dynamic else block["type"].removeprefix("tool-"),
                "input": block.get("input"),
                **_taken(block, "providerExecuted", "title", "toolMetadata"),
                **_renamed(block, "callProviderMetadata"),
            }
            yield from self._new("input", asked)
        approval = block.get("approval")
        if isinstance(approval, dict) and "id" in approval:
            request = {"approvalId": approval["id"], "toolCallId": block["toolCallId"]}
            request |= _taken(approval, "isAutomatic", "signature")
            yield from self._new("request", {"type": "tool-approval-request", **request})
            if "approved" in approval:
                response = {"approvalId": approval["id"], "approved": approval["approved"]}
                response |= _taken(approval, "reason")
                yield from self._new("response", {"type": "tool-approval-response", **response})
        output = self._output(block, call)
        if output is not None:
            yield from self._new("output", output, again=True)  # a client replaces the result of a call
        elif "output" in self._chunks:
            raise _changed()

    def _output(self, block: Chunk, call: Chunk) -> Chunk | None:
        """The chunk of the result of a call; None without a result."""
        given = {
            **call,
            **_taken(block, "providerExecuted", "preliminary"),
            **_renamed(block, "resultProviderMetadata"),
        }
        match block.get("state"):
            case "output-available":
                return {"type": "tool-output-available", **given, "output": block.get("output")}
            case "output-error":
                return {"type": "tool-output-error", **given, "errorText": str(block.get("errorText", ""))}
            case "output-denied":
                return {"type": "tool-output-denied", "toolCallId": block["toolCallId"]}
        return None


def _shown(answer: Answer) -> list[Message]:
    """The messages of an answer up to a growing reply, because what follows it ends its last text for the client."""
    grows = False
    for index, message in enumerate(answer.messages):
        if grows and message.role == "assistant":
            return answer.messages[:index]
        grows = grows or (message.status == "streaming" and not answer.done)
    return answer.messages


def _changed() -> ConflictError:
    return ConflictError("a part of the answer that was sent has been edited or removed; read the messages again")


def _taken(block: Chunk, *names: str) -> Chunk:
    return {name: block[name] for name in names if name in block}


def _renamed(block: Chunk, name: str) -> Chunk:
    return {"providerMetadata": block[name]} if name in block else {}
