"""The history in a file of docs/how-to/histories.md: it keeps what it says."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from redis_history import user
from tests.docs.pages import DOCS

EXAMPLES = DOCS / "examples"
sys.path.insert(0, str(EXAMPLES))
FileHistory = import_module("file_history").FileHistory


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    history = FileHistory(tmp_path / "history.json", max_length=3)
    history.load()
    assert len(history) == 0
    history.autosave()
    for number in range(5):
        history.add_text("user", str(number))
    again = FileHistory(history.path)
    again.load()
    assert again.entries == history.entries
    history.clear()
    again.load()
    assert again.entries == []
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


def test_a_failed_save_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = FileHistory(tmp_path / "history.json")
    history.add_entry(user("kept"))
    history.save()
    history.add_text("user", "lost")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            history.save()
    history.load()
    assert [entry.text for entry in history.entries] == ["kept"]
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]
