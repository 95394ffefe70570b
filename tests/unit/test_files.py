"""Files that are replaced in one step, whatever comes between."""

from __future__ import annotations

import contextlib
import inspect
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from redis_history import HistoryStore, _files, user
from redis_history._files import replacing
from redis_history.importers import export_messages, transfer

NEW = b"written"


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def interrupted_everywhere(action: Callable[[], object], *modules: Any) -> Iterator[int]:
    """Runs `action` again and again, with Ctrl-C one step of the code of these modules later each time, until it gets
    to its end. Yields after each."""
    files = {str(module.__file__) for module in modules}
    step = left = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        # A signal comes in between two lines, or as a call comes back; not as a generator hands out what it yields.
        if event == "line" or (event == "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    def run() -> bool:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
        except KeyboardInterrupt:
            return False
        finally:
            sys.settrace(before)
        return True

    done = False
    while not done:
        step = left = step + 1
        done = run()
        yield step


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a descriptor whose number never came back to us
def test_an_interruption_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"as it was")

    def action() -> None:
        with replacing(path) as stream:
            stream.write(NEW)

    steps = 0
    for steps in interrupted_everywhere(action, _files, contextlib):
        assert path.read_bytes() in (b"as it was", NEW)
        assert names(tmp_path) == ["e"], f"after step {steps}"
    assert steps > 10
    assert path.read_bytes() == NEW


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.gz"])
def test_so_does_an_export_interrupted_at_any_step(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"as it was")
    whole = 0
    with HistoryStore("memory://") as store:
        store.append_many("c", [user("x") for _ in range(3)])
        modules = (_files, transfer, contextlib)
        for step in interrupted_everywhere(lambda: export_messages(store, path), *modules):
            assert names(tmp_path) == [name], f"after step {step}"
            whole += path.read_bytes() != b"as it was"
    assert 0 < whole < step


def test_a_failure_inside_leaves_it_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with suppress(ZeroDivisionError), replacing(path) as stream:
        stream.write(NEW)
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_the_mode_is_that_of_the_umask_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "new"):
        pass
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
    for mode in (0o600, 0o666, 0o777):
        with replacing(tmp_path / "new", mode):
            pass
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


def test_a_name_that_takes_all_the_bytes_a_name_may_have(tmp_path: Path) -> None:
    for name in ("n" * 255, "历" * 85):
        with replacing(tmp_path / name) as stream:
            stream.write(NEW)
        assert (tmp_path / name).read_bytes() == NEW
