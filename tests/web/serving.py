"""The live view as people run it: the command redis-history serve, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import TracebackType

from tests.support.servers import DEADLINE, free_port

TOKEN = "a-token-of-the-tests-only"


class Served:
    """`redis-history serve` over a namespace; started again it has the same address."""

    def __init__(self, url: str, namespace: str, *options: str) -> None:
        self._argv = [sys.executable, "-m", "redis_history.cli", "--url", url, "--namespace", namespace, "--json", "serve"]
        self._argv += ["--port", str(free_port()), "--token", TOKEN, *options]
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    @property
    def base(self) -> str:
        """The address without the token, with a slash at its end."""
        return self.address.partition("?")[0]

    def start(self) -> Served:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # written when it listens
        assert line, f"it ended with {self._process.wait(DEADLINE)}"
        self.address = json.loads(line)["url"]
        return self

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(DEADLINE)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Served:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(signal.SIGTERM)
