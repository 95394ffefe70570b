"""A server that speaks the wire formats of OpenAI and Anthropic, with prepared answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ModelServer"]


class ModelServer:
    """`answers` are taken in turn, the last again and again: a text, a dict (the whole body), a status with a body,
    or an Event, which is waited for before the next one is taken. `requests` are the paths and bodies that came."""

    def __init__(self) -> None:
        self.answers: list[Any] = ["A summary."]
        #: Instead of `answers`: from the body of a request to its answer.
        self.answer: Any = None
        self.finish: str | None = None
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
                status, answer = outer._next(self.path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
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
            return 200, _openai("late", None) if "chat" in path else _anthropic("late", None)
        if isinstance(answer, tuple):
            return answer
        if isinstance(answer, str):
            return 200, _openai(answer, self.finish) if "chat" in path else _anthropic(answer, self.finish)
        return 200, answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _openai(text: str, finish: str | None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish or "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


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
