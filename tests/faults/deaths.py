"""A process that dies with leases of all kinds, and a process that reads them while the network loses replies."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from redis_history import HistoryStore, RetryPolicy, user
from redis_history.store.operations import TakeRun

#: Its reply, its run, a run for which another agent waits, and the lease of its compressor.
GRAVES = ("grave", "grave run", "grave waited", "grave compressed")
#: How often a reader loses a reply, and how long it sees the dead as alive, with time for a busy machine.
LOSE_EVERY: Final = 3.0
PROMISED: Final = 11.5
_LEASE = 8.0


def die(store: HistoryStore, folder: Path) -> None:
    """Hold leases of all kinds until this process is killed."""
    for name in GRAVES:
        store.append(name, user("x"))
    reply = store.stream(GRAVES[0], id="reply")
    reply.open()
    reply.write("half")
    with store.run(GRAVES[1]), store.run(GRAVES[2]):
        op = TakeRun(GRAVES[3], (("0123456789abcdef", None),), False, _LEASE, "compressor")
        assert store.backend.execute(op).done
        time.sleep(1.0)
        (folder / "doomed").touch()
        time.sleep(600)


def mourn(open_store: Callable[..., HistoryStore], folder: Path, say: Callable[[str], Any]) -> None:
    """Report leases that are alive too long after that process was killed, which the file "dead" indicates."""

    def ended(store: HistoryStore) -> bool:
        return store.get(GRAVES[0])[-1].status != "streaming"

    def over(store: HistoryStore) -> bool:
        run = store.get_run(GRAVES[1])
        return run is None or not run.is_active

    def begun(store: HistoryStore) -> bool:
        with store.run(GRAVES[2], wait=60):
            return True

    def free(store: HistoryStore) -> bool:
        op = TakeRun(GRAVES[3], (("fedcba9876543210", None),), False, _LEASE, "compressor")
        return store.backend.execute(op).done

    seen: dict[str, float] = {}

    def watch(what: str, is_over: Callable[[HistoryStore], bool]) -> None:
        with open_store(retry=RetryPolicy(deadline=60.0)) as store:
            while not (folder / "dead").exists():
                store.get_run(GRAVES[1])
                (folder / f"mourns {what}").touch()
                time.sleep(0.1)
            while not is_over(store):
                time.sleep(0.4)
            seen[what] = time.time()

    whats = {"the reply": ended, "the run": over, "the holder that others wait for": begun, "the compressor": free}
    threads = [threading.Thread(target=watch, args=one, daemon=True) for one in whats.items()]
    for thread in threads:
        thread.start()
    while not (folder / "dead").exists():
        if all((folder / f"mourns {what}").exists() for what in whats):
            (folder / "mourning").touch()
        time.sleep(0.05)
    died = (folder / "dead").stat().st_mtime
    for thread in threads:
        thread.join(max(0.0, died + 30.0 - time.time()))
    for what in whats:
        lasted = seen.get(what, float("inf")) - died
        if lasted > PROMISED:
            say(f"{what} of a process that was killed was still alive after {PROMISED} seconds: {lasted:.1f}")
    with open_store() as store:
        for name in GRAVES:
            store.delete_conversation(name)
