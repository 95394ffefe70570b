"""A model on loopback that speaks OpenAI's chat completions, and remembers what it was asked."""

from __future__ import annotations

import json
import re
import socketserver
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

__all__ = ["ModelServer"]

MEETING = 60.0  # seconds; processes import a framework before they ask


class Refused(Exception):
    """What OpenAI answers with 400."""


class ModelServer:
    """For a question with two numbers it calls the tool `add`. Otherwise it answers with the result of the tool and the
    number of the user's questions. Like OpenAI, it refuses another key, and calls without their results after them.

    `meet`: so many first questions wait for each other, so that the runs of their agents overlap.
    """

    key = "sk-local"

    def __init__(self, *, meet: int = 1) -> None:
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self._lock = threading.Lock()
        self._expected = meet
        self._meeting = threading.Barrier(meet)
        self._calls = 0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._meeting.abort()  # `server_close` joins threads that wait there
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The completion that answers a request; raises Refused, or BrokenBarrierError if the others did not come."""
        messages = body["messages"]
        with self._lock:
            self.requests.append(body)
            number = len(self.requests)
        _check_pairs(messages)
        if messages[-1]["role"] == "user":
            with self._lock:
                waits, self._expected = self._expected > 0, self._expected - 1
            if waits:
                self._meeting.wait(MEETING)
        message: dict[str, Any] = {"role": "assistant", "refusal": None, **self._decide(messages)}
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
                }
            ],
            "usage": {"prompt_tokens": len(messages), "completion_tokens": 1, "total_tokens": len(messages) + 1},
        }

    def _decide(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        questions = [_text(message) for message in messages if message["role"] == "user"]
        last = messages[-1]
        if last["role"] == "tool":
            return {"content": f"{_text(last)}; {len(questions)} questions"}
        numbers = re.findall(r"\d+", questions[-1])
        if len(numbers) != 2:
            return {"content": f"hello; {len(questions)} questions"}
        with self._lock:
            self._calls += 1
            id_ = f"call_{self._calls}"
        function = {"name": "add", "arguments": f'{{"a": {numbers[0]}, "b": {numbers[1]}}}'}
        return {"content": None, "tool_calls": [{"id": id_, "type": "function", "function": function}]}


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _check_pairs(messages: list[dict[str, Any]]) -> None:
    """The results of an assistant's calls are the very next messages, and nothing else is a result."""
    open_: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_:
                raise Refused(f"the result {message['tool_call_id']} does not follow its call")
            open_.remove(message["tool_call_id"])
            continue
        if open_:
            raise Refused(f"calls without results: {sorted(open_)}")
        open_ = {call["id"] for call in message.get("tool_calls") or ()}
    if open_:
        raise Refused(f"calls without results: {sorted(open_)}")


def _chunks(completion: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same completion as a stream: contents and arguments in two halves."""
    [choice] = completion["choices"]
    message = choice["message"]
    text = message["content"] or ""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text[: len(text) // 2] or None}]
    deltas += [{"content": text[len(text) // 2 :]}] if text else []
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": arguments[:4]}}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[4:]}}]})
    for number, delta in enumerate(deltas, 1):
        reason = choice["finish_reason"] if number == len(deltas) else None
        made = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield {**completion, "object": "chat.completion.chunk", "choices": [made], "usage": None}
    yield {**completion, "object": "chat.completion.chunk", "choices": []}


class _Server(socketserver.ThreadingTCPServer):  # HTTPServer asks the resolver for its own name
    model: ModelServer


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: a connection is one request, so that no thread waits for another one when the server ends."""

    server: _Server
    timeout = 10

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.path != "/v1/chat/completions":
                self._answer(HTTPStatus.NOT_FOUND, _error(f"no such path: {self.path}"))
            elif self.headers["Authorization"] != f"Bearer {ModelServer.key}":
                self._answer(HTTPStatus.UNAUTHORIZED, _error("not the key of this server"))
            else:
                completion = self.server.model.complete(body)
                if body.get("stream"):
                    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(completion)]
                    self._send(HTTPStatus.OK, "text/event-stream", "".join([*events, "data: [DONE]\n\n"]))
                else:
                    self._answer(HTTPStatus.OK, completion)
        except Refused as error:
            self._answer(HTTPStatus.BAD_REQUEST, _error(str(error)))
        except threading.BrokenBarrierError:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _error("the others did not ask in time"))

    def _answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        if status is not HTTPStatus.OK:
            self.server.model.refused.append(body["error"]["message"])
        self._send(status, "application/json", json.dumps(body))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Not to the terminal."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
