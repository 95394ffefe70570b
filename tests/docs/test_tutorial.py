"""The two scripts of the tutorial, in two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import redis_history
from tests.docs.pages import DOCS, PAGES, ROOT, blocks

SCRIPTS = {block.file: block for page in PAGES for block in blocks(page) if block.file is not None}


def test_watch_and_say(private_home: Path) -> None:
    assert set(SCRIPTS) == {"watch.py", "say.py"}, "a script in the documentation without a test"
    for file, block in SCRIPTS.items():
        (private_home / str(file)).write_text(block.content)
    others = [block for block in blocks(DOCS / "tutorial.md") if block.language in ("sh", "text")]
    [commands, shown] = others[1:]
    assert 'python say.py "Kettle on?" "Two cups, please."' in commands.content

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    say = [sys.executable, "say.py", "Kettle on?", "Two cups, please."]
    watch = subprocess.Popen(
        [sys.executable, "watch.py"], cwd=private_home, env=environment, stdout=subprocess.PIPE, text=True
    )
    with watch:
        assert watch.stdout is not None
        try:
            seen = watch.stdout.readline()
            subprocess.run(say, cwd=private_home, env=environment, check=True, timeout=60)
            seen += watch.stdout.readline() + watch.stdout.readline()
        finally:
            watch.terminate()
    assert seen == shown.content


def test_the_follower_knows_every_event() -> None:
    """Except changes of the record."""
    [follower] = [block.content for block in blocks(DOCS / "tutorial.md") if "def states" in block.content]
    wanted = {kind.__name__ for kind in get_args(redis_history.Event)} - {"ConversationUpdated"}
    assert {name for name in wanted if len(re.findall(rf"\b{name}\b", follower)) < 2} == set(), "imported, and used"
