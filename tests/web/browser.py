"""Which Chromium the tests drive. As a script: prints its path, or exits with 1."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# First the build without windows: the same engine, and a new context of it takes an eighth of the processor's time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser(packaged: str) -> str | None:
    """$CHROMIUM, one on PATH, or the one that Playwright has installed (`packaged`)."""
    given = os.environ.get("CHROMIUM")
    for name in (given,) if given else _NAMES:
        if found := shutil.which(name):
            return found
    return packaged if Path(packaged).exists() else None


def main() -> int:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = find_browser(playwright.chromium.executable_path)
    print(found or "there is no Chromium")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
