"""A call is interrupted between any two steps: no later call reads a reply that is not its own."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from redis_history import HistoryStore, user
from tests.support.servers import Start


class Tracer:
    """Raises KeyboardInterrupt before a line of this package or of redis-py, or of one method, counted from 1."""

    def __init__(self, at: int, method: str = "") -> None:
        self.left = at
        self._method = method

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        wanted = self._method in ("", frame.f_code.co_name)
        return self._line if wanted and ("/redis_history/" in name or "/redis/" in name) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


@pytest.mark.proves("threads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a socket in the middle of connect()
@pytest.mark.parametrize("connection", ["new", "kept"])
@pytest.mark.parametrize("call", ["get", "append"])
def test_interrupts_between_any_two_lines(own_server: Start, call: str, connection: str, full: bool) -> None:
    """As by Ctrl-C, or by the handler of a signal."""
    server = own_server("plain")
    with HistoryStore(server.url, search="off") as store:
        for name in "abc":
            store.append(name, user(f"text of {name}", id=name))
        line, finished = 1, False
        while not finished:
            if connection == "new":
                server.watcher.client_kill_filter(_type="normal", skipme=True)
            tracer, before = Tracer(line), sys.gettrace()
            sys.settrace(tracer)
            try:
                if call == "get":
                    store.get("b")
                else:
                    store.append("c", user("x"))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            finished = tracer.left > 0
            for name in "aab":
                assert [message.id for message in store.get(name)] == [name], f"after an interrupt before line {line}"
            line += 1 if full else 7
        assert line > 200
    gc.collect()  # the dropped sockets, before another test


@pytest.mark.proves("threads")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of sockets that are dropped
@pytest.mark.parametrize(
    "method", ["release", "send", "_free_lane", "_exchange", "take", "exchange", "_replies", "answer", "_wake_next"]
)
@pytest.mark.full
def test_threads_share_no_connection_after_interrupts(own_server: Start, method: str) -> None:
    """Wherever the thread that sends for others is interrupted, the others receive their own replies, then and
    later."""
    with HistoryStore(own_server("plain").url, search="off") as store, ThreadPoolExecutor(4) as threads:

        def read(name: str) -> set[str]:
            return {message.id for _ in range(15) for message in store.get(name)}

        for name in "abcd":
            store.append(name, user("x", id=name))
        interrupted = 0
        for line in range(1, 30):
            others = [threads.submit(read, name) for name in "abcd"]
            tracer, before = Tracer(line, method), sys.gettrace()
            sys.settrace(tracer)
            try:
                for _ in range(5):  # another thread may send some of these calls
                    store.list_conversations()
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(before)
            assert [other.result(60) for other in others] == [{name} for name in "abcd"], f"before line {line}"
        assert interrupted > 3
    gc.collect()  # the dropped sockets, before another test
