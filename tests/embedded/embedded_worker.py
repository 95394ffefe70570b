"""The program of embedded_tools.Worker: one EmbeddedServer, one command per line of standard input, as JSON."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from redis_history.embedded import EmbeddedServer
from redis_history.embedded._launch import command

server = EmbeddedServer(sys.argv[1], **json.loads(sys.argv[2]))


def do(name: str, *words: str) -> Any:
    if name == "redis":  # the first line of the reply
        return command(Path(server.unix_socket), *words, timeout=5).decode()
    if name == "spawn":  # a program that outlives this process, with every descriptor it can inherit
        code = "import signal; signal.pause()"
        return {"pid": subprocess.Popen([sys.executable, "-c", code], close_fds=False).pid}
    if name == "fork":
        return fork(words)
    if name == "churn":
        return churn(int(words[0]))
    if name == "started":
        return server.started
    getattr(server, name)()  # start, ensure, close
    return server.pid if server.started else None


def fork(words: tuple[str, ...]) -> Any:
    """Do `words` in a forked child, which then stays. Returns its answer and its process id."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        with os.fdopen(reader) as answers:
            return {"pid": pid, **json.loads(answers.readline())}
    os.close(reader)
    os.write(writer, (answer(list(words)) + "\n").encode())
    os.close(writer)
    signal.pause()  # until Worker.close kills it
    os._exit(0)


def churn(times: int) -> int:
    """Come and go: each time another key is counted up by one, through whatever server is there."""
    for _ in range(times):
        with EmbeddedServer(sys.argv[1], **json.loads(sys.argv[2])) as own:
            reply = command(Path(own.unix_socket), "INCR", "churned", timeout=5)
            assert reply.startswith(b":"), reply
    return times


def answer(words: list[str]) -> str:
    try:
        return json.dumps({"result": do(*words)})
    except Exception as error:  # noqa: BLE001 - the test that asked is to see it
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    for line in sys.stdin:
        print(answer(json.loads(line)), flush=True)
