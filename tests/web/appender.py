"""Another process that appends: one message for each line of JSON it reads, told when it is stored."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any

from redis_history import HistoryStore, Message
from redis_history.model import Participant
from tests.support.servers import DEADLINE


class Appender:
    """The process; it has connected when this is entered."""

    def __init__(self, url: str, namespace: str) -> None:
        argv = [sys.executable, "-m", "tests.web.appender", url, namespace]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Appender:
        self._heard()
        return self

    def __call__(self, conversation: str, text: str, **fields: Any) -> None:
        """Ask for a message, and do not wait for it."""
        assert self._process.stdin is not None
        print(json.dumps({"conversation": conversation, "text": text, **fields}), file=self._process.stdin, flush=True)

    def stored(self) -> None:
        """Wait until what was asked for first is stored; once for each."""
        self._heard()

    def _heard(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), f"the appender ended with {self._process.wait(DEADLINE)}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=DEADLINE)


def main(url: str, namespace: str) -> None:
    with HistoryStore(url, namespace=namespace) as store:
        store.list_conversations(limit=1)
        print("ready", flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            who = Participant("agent", "other", "Other process")
            message = Message(role="assistant", parts=asked["text"], participant=who, **asked.get("more", {}))
            store.append(asked["conversation"], message)
            print("stored", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
