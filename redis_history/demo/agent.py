"""The program of an agent process of the demo. It appends the messages that it reads from standard input."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from redis_history import HistoryStore, Participant, assistant
from redis_history.errors import RedisHistoryError

#: The conversation to which all agents report.
SHARED = "agents at work"


def main() -> None:
    """Read, pickled, the name of the agent with the URL and the options of its store. Then read conversation ids with
    a message each, append it, and print 1 if it was stored before, else 0. End with the input."""
    try:
        name, url, options = _read()
        me = Participant(kind="agent", id=name)
        with HistoryStore(url, **options) as store:
            while True:
                conversation_id, message = _read()
                appended = store.append(conversation_id, message)
                if not appended.duplicate:
                    report = f"I added message {appended.message.sequence} to {conversation_id}."
                    store.append(SHARED, assistant(report, participant=me))
                print(int(appended.duplicate), flush=True)
    except EOFError:
        pass
    except RedisHistoryError as error:
        sys.exit(str(error))


def _read() -> Any:
    return pickle.load(sys.stdin.buffer)  # noqa: S301 -- the parent process wrote it
