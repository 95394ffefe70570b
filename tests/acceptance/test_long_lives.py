"""Costs of a conversation with thousands of compactions, and the keys that it leaves on the server."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from redis_history import Conversation, HistoryStore, RetryPolicy, user
from tests.support.faults import KilledError
from tests.support.servers import RealServer, Start

COUNT = 5000
#: Milliseconds for which one call may keep the server busy; or, if the machine is slow at present, that many times what
#: one command takes that removes as many small keys.
MOST, TIMES = 20.0, 5.0


def _live(store: HistoryStore, count: int, name: str = "c") -> None:
    for number in range(count):
        store.append(name, user(f"question {number} and some more words", id=f"q{number}"))
        store.compact(name, through=f"q{number}", summary=f"summary {number} of all before")


class Busy:
    """Measures for how many milliseconds each call of a store keeps the server's main thread busy, by script. Other
    load does not count."""

    def __init__(self, store: HistoryStore, client: Any) -> None:
        backend: Any = store.backend
        self._client = client
        self._longest: dict[str, float] = {}
        carry_out = backend.carry_out

        def carrying(work: Any) -> Any:
            first = work[0] if type(work) is list else work
            name = first.script.name if first.script is not None else first.args[0].decode()
            before = self._now()
            try:
                return carry_out(work)
            finally:
                self._longest[name] = max(self._longest.get(name, 0.0), self._now() - before)

        backend.carry_out = carrying

    def _now(self) -> float:
        used = self._client.info("cpu")
        return 1000.0 * float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])

    def of(self, act: Callable[[int], Any], times: int = 3) -> dict[str, float]:
        """Return the time of the longest call of each script in `act`, the minimum of several repetitions."""
        found = defaultdict(list)
        for number in range(times):
            self._longest.clear()
            act(number)
            for name, longest in self._longest.items():
                found[name].append(longest)
        return {name: min(all_of_them) for name, all_of_them in found.items()}

    def bare(self) -> float:
        """Return the time of a command that removes `COUNT` small keys: on a shared machine it doubles now and then."""
        found = list[float]()
        for _ in range(3):
            names = [f"bare:{'x' * 40}:{number}" for number in range(COUNT)]
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.zadd(name, {f"{name} {'y' * 100}": 1})
            pipeline.execute()
            before = self._now()
            self._client.unlink(*names)
            found.append(self._now() - before)
        return min(found)


@pytest.mark.proves("long-lives")
@pytest.mark.full
def test_no_call_of_a_long_life_holds_the_server(own_server: Start) -> None:
    server = own_server("plain")
    with HistoryStore(server.url, search="off", retry=RetryPolicy(deadline=60)) as store, server.client() as client:
        _live(store, COUNT)
        busy = Busy(store, client)
        acts: dict[str, Callable[[int], Any]] = {
            "append": lambda n: store.append("c", user("x", id=f"x{n}")),
            "compact": lambda n: store.compact("c", through=f"x{n}", summary="again"),
            "read": lambda n: [store.get_message("c", f"q{n + 2500}"), store.get("c", include_archived=True)],
            "list": lambda n: store.list_conversations(preview=True),
            "fork": lambda n: store.fork("c", f"f{n}"),
            "fork through": lambda n: store.fork("c", f"g{n}", through="q2500"),
            "expand": lambda n: store.expand("c", next(one.id for one in store.get("c") if one.is_summary)),
            "erase": lambda n: store.erase(f"f{n}", ["q0"]),
            "clear": lambda n: store.clear(f"f{n}"),
            "delete": lambda n: store.delete_conversation(f"g{n}"),
        }
        longest = {name: busy.of(act) for name, act in acts.items()}
        bare = busy.bare()
        print(longest, bare)
        slow = {name: its for name, its in longest.items() if max(its.values()) > max(MOST, TIMES * bare)}
        assert not slow
        for name in ("append", "compact"):  # as in a short life
            assert max(longest[name].values()) < 2.0


@pytest.mark.proves("long-lives", "erase")
@pytest.mark.full
def test_an_erasure_with_thousands_of_former_summaries(own_server: Start) -> None:
    server = own_server("plain")
    with HistoryStore(server.url, search="off", retry=RetryPolicy(deadline=60)) as store, server.client() as client:
        _live(store, COUNT)
        assert store.erase("c", ["q0"]) == 1
        every = [one.id for one in store.iter("c", include_archived=True)]
        assert every == [f"q{number}" for number in range(1, COUNT)]
        state = next(client.scan_iter(match="*:c:s", count=1000))
        assert client.hget(state, "E") is None
        assert not [field for field in client.hkeys(state) if field[:1] == b"^"]
        assert len([field for field in client.hkeys(state) if field[:1] == b":"]) == COUNT - 1


@pytest.mark.proves("erase")
def test_a_full_server_erases_former_summaries(own_server: Start) -> None:
    """Also where the first block of archives has none of them."""
    server = own_server("plain")
    with HistoryStore(server.url, search="off", retry=RetryPolicy(deadline=0.1)) as store, server.client() as client:
        _live(store, 120)
        client.config_set("maxmemory", 1)
        assert store.erase("c", ["q100"]) == 1
        state = next(client.scan_iter(match="*:c:s", count=1000))
        assert client.hget(state, "E") is None
        questions = [one.id for one in store.iter("c", include_archived=True) if one.id.startswith("q")]
        assert questions == [f"q{number}" for number in range(120) if number != 100]


@pytest.mark.proves("erase-user")
@pytest.mark.parametrize("how", ["erase_user", "erase", "clear", "delete_conversation", "restore"])
def test_a_removal_takes_the_draft_of_a_killed_fork(server: RealServer, namespace: str, how: str) -> None:
    removals: dict[str, Callable[[HistoryStore], Any]] = {
        "erase_user": lambda store: store.erase_user("ann"),
        "erase": lambda store: store.erase("c", ["q0"]),
        "clear": lambda store: store.clear("c"),
        "delete_conversation": lambda store: store.delete_conversation("c"),
        "restore": lambda store: store.restore("c", []),
    }
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        HistoryStore(server.url, namespace=namespace) as other,
        server.client() as client,
    ):
        store.create_conversation(Conversation("c", user_id="ann"))
        _live(store, 3)
        backend: Any = store.backend
        carry_out = backend.carry_out

        def carrying(work: Any) -> Any:
            if type(work) is not list and work.script is not None and work.script.name == "publish":
                raise KilledError
            return carry_out(work)

        backend.carry_out = carrying
        for number in range(2):
            with pytest.raises(KilledError):
                store.fork("c", f"copy {number}")

        def content() -> list[bytes]:
            keys = client.scan_iter(match=f"*{namespace}*copy*", count=1000)
            return [key for key in keys if b"question 0" in (client.dump(key) or b"")]

        assert len(content()) == 2
        removals[how](other)
        assert content() == []
        backend.carry_out = carry_out
        if how in ("clear", "erase", "restore"):
            assert store.fork("c", "copy 0").message_count == len(store.get("c"))
