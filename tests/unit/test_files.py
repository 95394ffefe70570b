"""Files that are replaced in one step, wherever an interruption comes."""

import contextlib
import gc
import inspect
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from redis_history import HistoryStore, user
from redis_history.embedded import _files
from redis_history.embedded._files import replacing
from redis_history.integrations.importers import export_messages, exporting


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

    done = False
    while not done:
        step = left = step + 1
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        yield step


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    # Python 3.13 packs what is left when it collects a file that nobody has closed.
    "ignore:Exception ignored in. <gzip:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("name", ["e.jsonl", "e.jsonl.gz"])
def test_an_export_interrupted_at_any_step_leaves_the_old_file_or_the_new_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"before")
    replaced = 0
    with HistoryStore("memory://") as store:
        store.append_many("c", [user("x") for _ in range(3)])
        modules = (_files, exporting, contextlib)
        for step in interrupted_everywhere(lambda: export_messages(store, path), *modules):
            assert names(tmp_path) == [name], f"after step {step}"
            replaced += path.read_bytes() != b"before"
    assert 0 < replaced < step
    gc.collect()  # what an interrupt leaves open is collected here, and not in another test


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"before")
    with contextlib.suppress(ZeroDivisionError), replacing(path) as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    assert (names(tmp_path), path.read_bytes()) == (["e"], b"before")


def test_the_mode_is_the_given_one_or_that_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "new"):
        pass
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
    for mode in (0o600, 0o666, 0o777):
        with replacing(tmp_path / "new", mode):
            pass
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


def test_the_longest_names_are_possible(tmp_path: Path) -> None:
    for name in ("n" * 255, "历" * 85):
        with replacing(tmp_path / name) as stream:
            stream.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new"
