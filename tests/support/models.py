"""A server that speaks the wire formats of OpenAI and Anthropic, with prepared answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ModelServer"]


class ModelServer:
    """`answers` are taken in turn, the last again and again: a text, a dict (the whole body), a status with a body,
    or an Event, which is waited for before the next one is taken. `requests` are the paths and bodies that came. A
    request of chat completions for a stream gets its answer in halves."""

    def __init__(self) -> None:
        self.answers: list[Any] = ["A summary."]
        #: Instead of `answers`: from the body of a request to its answer.
        self.answer: Any = None
        self.finish: str | None = None
        #: Called after each piece of a stream.
        self.pause: Callable[[bytes], object] = lambda piece: None
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
                status, answer = outer._next(self.path, body)
                streams = body.get("stream") is True
                texts = list(_events(answer)) if streams else [json.dumps(answer)]
                pieces = [answer] if isinstance(answer, bytes) else [text.encode() for text in texts]
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
                    self.send_header("Content-Length", str(sum(map(len, pieces))))
                    self.end_headers()
                    for piece in pieces:
                        self.wfile.write(piece)
                        outer.pause(piece)
                except OSError:  # the client did not wait
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _next(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.answer is not None:
            answer = self.answer(body)
        else:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, threading.Event):
            answer.wait(30)
            return 200, completion("late") if "chat" in path else _anthropic("late", None)
        if isinstance(answer, tuple):
            return answer
        if isinstance(answer, str):
            return 200, completion(answer, self.finish) if "chat" in path else _anthropic(answer, self.finish)
        return 200, answer

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def completion(text: str | None, finish: str | None = None, calls: list[Any] | None = None) -> dict[str, Any]:
    """The body of a chat completion; `calls` are pairs of an id and arguments for the tool `add`."""
    functions = [(id_, {"name": "add", "arguments": json.dumps(arguments)}) for id_, arguments in calls or ()]
    tool_calls = [{"id": id_, "type": "function", "function": function} for id_, function in functions]
    message = {"role": "assistant", "content": text, **({"tool_calls": tool_calls} if calls else {})}
    finish = finish or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _events(body: dict[str, Any]) -> Iterator[str]:
    """The same chat completion as a stream: the text and the arguments of calls in halves."""
    [choice] = body["choices"]
    text = choice["message"]["content"] or ""
    deltas: list[Any] = [{"role": "assistant", "content": text[: len(text) // 2]}, {"content": text[len(text) // 2 :]}]
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {"name": "add", "arguments": arguments[:4]}}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[4:]}}]})
    for delta in (*deltas, {}):
        made = {"index": 0, "delta": delta, "finish_reason": None if delta else choice["finish_reason"]}
        chunk = {**body, "object": "chat.completion.chunk", "choices": [made], "usage": None}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def _anthropic(text: str, finish: str | None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": text}],
        "stop_reason": finish or "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
