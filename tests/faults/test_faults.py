"""Random operations of several processes under faults of all kinds, on servers of all kinds: every promise is kept, and
is seen to be broken by code that breaks it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.deployments import BehindSentinel, Cluster, Deployment, OneServer, compiler
from tests.faults.episode import ROOT, Episode

#: Acknowledged operations of the long proofs, which are left out without it. Clusters do half as many.
OPERATIONS = int(os.environ.get("REDIS_HISTORY_FAULT_OPERATIONS", "0"))
LONG = pytest.mark.skipif(not OPERATIONS, reason="set REDIS_HISTORY_FAULT_OPERATIONS, for example to 100000")

#: How to make each deployment, and the options of the episode.
DEPLOYMENTS: dict[str, tuple[Callable[..., Deployment], dict[str, Any], dict[str, Any]]] = {
    "redis with search": (OneServer, {"kind": "redis"}, {"search": "require"}),
    "cluster": (Cluster, {"kind": "plain", "replicas": False}, {}),
    "redis 8": (OneServer, {"kind": "redis8"}, {}),
    "valkey, without CONFIG": (OneServer, {"kind": "valkey", "limited": True}, {}),
    "clock": (OneServer, {"kind": "plain", "clock": True}, {}),
    "replicas": (OneServer, {"kind": "plain", "replica": True}, {"durability": "replicas"}),
    "sentinel": (BehindSentinel, {"kind": "plain"}, {}),
    "cluster of redis 8": (Cluster, {"kind": "redis8", "replicas": True}, {}),
    "cluster of valkey": (Cluster, {"kind": "valkey", "replicas": True, "limited": True}, {}),
}
LONG_DEPLOYMENTS = {
    **DEPLOYMENTS,
    "redis, copies a minute late": (OneServer, {"kind": "plain", "latest": 75.0}, {}),
    "cluster of redis": (Cluster, {"kind": "plain", "replicas": True}, {}),
}
DEFAULT = ("redis with search",)


def attack(folder: Path, name: str, *, seed: int = 1, latest: float = 1.0, **more: Any) -> tuple[list[str], Episode]:
    make, options, its = LONG_DEPLOYMENTS[name]
    if options.get("clock") and not compiler():
        pytest.skip("there is no C compiler, which makes the clock")
    deployment = make(**{"latest": latest, "seed": seed, **options})
    episode = Episode(folder, deployment, seed=seed, **its, **more)
    return episode.run(), episode


def shown(problems: list[str]) -> str:
    return "\n".join([f"{len(problems)} violations", *problems[:20]])


@pytest.mark.proves("broken-connections", "faults")
@pytest.mark.parametrize(
    "name", [*DEFAULT, *(pytest.param(one, marks=pytest.mark.full) for one in DEPLOYMENTS if one not in DEFAULT)]
)
def test_promises_hold_under_faults(tmp_path: Path, name: str, full: bool) -> None:
    size = {"seconds": 6.0, "operations": 2500} if full else {"seconds": 2.5, "operations": 500, "streamers": 1}
    problems, episode = attack(tmp_path, name, pause=0.25, kills=full, **size)
    assert not problems, shown(problems)
    assert episode.counts["acknowledged"] >= 300


@pytest.mark.proves("faults")
@pytest.mark.full
@LONG
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LONG_DEPLOYMENTS)
def test_promises_hold_for_long(tmp_path: Path, name: str) -> None:
    operations = OPERATIONS // 2 if "cluster" in name else OPERATIONS
    least = {"move_slot": operations // 250, "fail_over": operations // 2500} if "cluster of" in name else {}
    problems, episode = attack(tmp_path, name, latest=3.0, operations=operations, seconds=1e6, pause=0.25, least=least)
    print(f"\n{name}: {dict(episode.counts)}")
    assert not problems, shown(problems)
    counts = episode.counts
    assert counts["acknowledged"] >= operations
    assert all(counts[fault] >= count for fault, count in least.items())


#: For each: words of the checker's complaint, the deployment, then edits: the file, what is replaced, the replacement.
MUTATIONS: dict[str, tuple[Any, ...]] = {
    "edit events without message": (
        "which was not removed",
        "replicas",
        (
            "changelog.py",
            "MessageUpdated(message_id=entry.ids[0], message=message",
            "MessageUpdated(message_id=entry.ids[0], message=None",
        ),
    ),
    "append events without removed_ids": (
        "another event than in the log",
        "redis 8",
        ("changelog.py", '"removed_ids": entry.ids', '"removed_ids": ()'),
    ),
    "wrong scores of lists": (
        "in another order than of changes",
        "redis 8",
        ("_change.lua", "redis.call('ZADD', registry, ", "redis.call('ZADD', registry, 'NX', "),
    ),
    "characters and tokens zero": (
        "its totals are",
        "redis 8",
        ("append.lua", "'c', characters, 'k', tokens", "'c', 0, 'k', 0"),
    ),
    "usage that an edit adds": (
        "but a recount gives",
        "redis 8",
        ("_usage.lua", "numbers[n] = numbers[n] - number", "numbers[n] = numbers[n] + 0 * number"),
    ),
    "usage that stays with the former owner": (
        "but its conversations have",
        "redis 8",
        ("record.lua", "if moves then usage.move(", "if false then usage.move("),
    ),
    "a key that is not declared": (
        "",
        "cluster",
        (
            "_declared.lua",
            "local function undeclared_keys(names)",
            "local function undeclared_keys(names)\n  do return end",
        ),
    ),
    "a ttl that replies do not get": (
        "keys are left",
        "redis 8",
        ("grow.lua", "if left > 0 then", "if false then"),
        (
            "_life.lua",
            "for _, reply in ipairs(replies_in(listed)) do redis.call",
            "for _, reply in ipairs({}) do redis.call",
        ),
    ),
    "an end of a reply that overwrites an edit": (
        "but overwrote",
        "redis 8",
        ("update.lua", "if not ends then return", "if false then return"),
    ),
    "an erasure that forgets former summaries": (
        "was erased, but is in",
        "redis 8",
        ("delete.lua", "if not asked[former] and quotes(time, record[OF.former_sequence]) then", "if false then"),
    ),
    "erased summaries stay in the archives": (
        "was erased, but is in",
        "redis 8",
        ("scrub.lua", "redis.call('ZREM', key, member)", "local _ = key"),
    ),
    "removals that drop no forks": (
        "has what was removed",
        "redis 8",
        ("_journal.lua", "return forks and {'forks', outcome, forks} or outcome", "return outcome"),
    ),
    "repeated calls are not recognized": (
        "times: as revisions",
        "redis 8",
        ("_journal.lua", "if outcome then seen.outcome", "if false then seen.outcome"),
    ),
    "an update has no entry in the log": (
        "UpdateMessage",
        "redis 8",
        ("update.lua", "write_log(newest,", "local _ = false and write_log(newest,"),
    ),
    "a deletion skips a revision": (
        "fits no state",
        "redis 8",
        ("delete.lua", "revision = revision + 1", "revision = revision + 2"),
    ),
    "a cap tears pairs": (
        "lost their calls",
        "redis 8",
        ("_trim.lua", "if leaving[first_of(i)] then", "if i <= excess then"),
    ),
    "a run that is over writes": (
        "but one with",
        "redis 8",
        ("_life.lua", "if fence and not has_lease(fence)", "if false"),
    ),
    "a late copy of an append brings back what was deleted": (
        "Append",
        "redis 8",
        ("_append.lua", "local left = departed()", "local left = {}"),
    ),
    "a lost reply excuses dead writers and holders": (
        "was still alive",
        "redis 8",
        ("leases.py", "        self._failed = True\n", "        self._failed, self._since = True, None\n"),
        ("leases.py", "min(since, first)", "since"),
    ),
    "a summary of pinned messages": (
        "but it is",
        "redis 8",
        ("ranges.py", "return _is_apart(message) or message.is_pinned", "return _is_apart(message)"),
        ("ranges.py", "if not any(message.is_pinned for message in messages)", "if True"),
    ),
    "a cap takes pinned messages": (
        "the oldest beyond the cap",
        "redis 8",
        ("_trim.lua", "pinned[i], at = true, at + 1", "at = at + 1"),
    ),
    "a fork with messages behind its end": (
        "Fork",
        "redis 8",
        ("fork.py", "within = self.end is None or ", "within = True or "),
    ),
    "an expansion commits a part of a copy": (
        "long: ",
        "redis 8",
        ("copy.lua", "'ZADD', copy, unpack(zadd)", "'ZADD', copy, zadd[1], zadd[2]"),
        ("expand.lua", "if redis.call('ZCARD', copy) ~= count + live_count then", "if false then"),
    ),
}


def found(package: Path, file: str, old: str) -> tuple[Path, str]:
    """The file that is to be edited, and its source."""
    [path] = package.rglob(file)
    source = path.read_text()
    assert source.count(old) == 1, f"{file} has changed: the mutation must, too"
    return path, source


def test_mutations_are_of_code_that_is_there() -> None:
    for _, _, *edits in MUTATIONS.values():
        for file, old, _ in edits:
            found(ROOT / "redis_history", file, old)


@pytest.mark.full
@LONG
@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_code_is_found(tmp_path: Path, name: str) -> None:
    """The processes use a copy of the package in which something is broken."""
    wanted, deployment, *edits = MUTATIONS[name]
    package = tmp_path / "package"
    shutil.copytree(ROOT / "redis_history", package / "redis_history", ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in edits:
        path, source = found(package, file, old)
        path.write_text(source.replace(old, new))
    problems: list[str] = []
    for seed in range(3):  # what an episode does is random; one may miss the broken place
        run = tmp_path / f"run {seed}"
        run.mkdir()
        size = {"operations": 1500, "seconds": 30.0, "pause": 0.25}
        problems, _ = attack(run, deployment, seed=seed, package=package, **size)
        if any(wanted in problem for problem in problems):
            return
    pytest.fail("\n".join(["not found", shown(problems)]))
