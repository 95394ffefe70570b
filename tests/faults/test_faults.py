"""Random operations of several processes under faults of all kinds: every promise is kept, and is seen to be broken by
scripts that break it."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checking import check
from tests.faults.episode import ROOT, SHORT_LOG, Episode

EPISODES: dict[str, dict[str, Any]] = {
    "restarts": {"kind": "redis"},
    "failovers": {"kind": "plain", "replicas": True},
}
#: The long run, and the share of the operations that each episode has of them.
LONG_EPISODES: dict[str, tuple[float, dict[str, Any]]] = {
    "restarts": (0.16, {"kind": "redis"}),
    "restarts everysec": (0.3, {"kind": "plain", "fsync": "everysec"}),
    "failovers": (0.25, {"kind": "plain", "replicas": True}),
    "valkey, copies a minute late": (0.3, {"kind": "valkey", "latest": 75.0}),
}
#: Acknowledged operations of the long run.
OPERATIONS = int(os.environ.get("REDIS_HISTORY_FAULT_OPERATIONS", "15000"))


@pytest.mark.proves("broken-connections", "faults")
@pytest.mark.parametrize("name", ["restarts", pytest.param("failovers", marks=pytest.mark.full)])
def test_promises_hold_under_faults(tmp_path: Path, name: str) -> None:
    episode = Episode(tmp_path, operations=1000, seconds=4.0, pause=0.25, latest=1.0, **EPISODES[name])
    problems = check(episode.run(), shortest_log=SHORT_LOG)
    assert not problems, "\n".join([f"{len(problems)} violations", *problems[:20]])
    assert episode.counts["acknowledged"] >= 300


@pytest.mark.proves("faults")
@pytest.mark.full
def test_promises_hold_for_long(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    problems = []
    for number, (name, (share, options)) in enumerate(LONG_EPISODES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        episode = Episode(folder, pause=1.0, seed=number, operations=int(share * OPERATIONS), **options)
        problems += [f"{name}: {problem}" for problem in check(episode.run(), shortest_log=SHORT_LOG)]
        counts += episode.counts
    faults = counts.total() - counts["acknowledged"]
    print(f"\n{counts['acknowledged']:,} operations, {faults:,} faults: {dict(counts)}")
    assert not problems, "\n".join([f"{len(problems)} violations", *problems[:20]])
    assert counts["acknowledged"] >= OPERATIONS
    assert faults >= OPERATIONS / 50


#: For each: words of the checker's complaint, then edits: the script, what is replaced, and the replacement.
MUTATIONS: dict[str, tuple[Any, ...]] = {
    "repeated calls are not recognized": (
        "times: as revisions",
        ("_journal", "if values[4] then seen.outcome", "if false then seen.outcome"),
    ),
    "an update has no entry in the log": (
        "UpdateMessage",
        ("update", "write_log(newest,", "local _ = false and write_log(newest,"),
    ),
    "a deletion skips a revision": ("follows", ("delete", "revision = revision + 1", "revision = revision + 2")),
    "a cap tears pairs": ("lost their calls", ("_trim", "if leaving[first_of(i)] then", "if i <= excess then")),
    "an expansion commits a part of a copy": (
        "long: ",
        ("copy", "'ZADD', KEYS[2], unpack(zadd)", "'ZADD', KEYS[2], zadd[1], zadd[2]"),
        ("expand", "if redis.call('ZCARD', copy) ~= count + live_count then", "if false then"),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_scripts_are_found(tmp_path: Path, name: str) -> None:
    """The processes use a copy of the package in which one script is broken."""
    wanted, *edits = MUTATIONS[name]
    package = tmp_path / "package"
    shutil.copytree(ROOT / "redis_history", package / "redis_history", ignore=shutil.ignore_patterns("__pycache__"))
    for script, old, new in edits:
        path = package / "redis_history/backends/redis/lua" / f"{script}.lua"
        source = path.read_text()
        assert source.count(old) == 1, f"{script}.lua has changed: the mutation must, too"
        path.write_text(source.replace(old, new))
    problems: list[str] = []
    for seed in range(3):  # what an episode does is random; one may miss the broken place
        run = tmp_path / f"run {seed}"
        run.mkdir()
        options = {"kind": "plain", "operations": 1500, "seconds": 30.0, "pause": 0.25, "latest": 1.0}
        episode = Episode(run, seed=seed, package=package, **options)
        problems = check(episode.run(), shortest_log=SHORT_LOG)
        if any(wanted in problem for problem in problems):
            return
    pytest.fail("\n".join([f"not found; {len(problems)} other violations", *problems[:20]]))
