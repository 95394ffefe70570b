"""The two scripts of the tutorial, in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
