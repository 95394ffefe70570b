"""Which Chromium the tests drive. As a script: prints its path, or exits with 1."""

import os
import shutil
import sys
from pathlib import Path

# First the build without windows: the same engine, and a new context of it takes an eighth of the processor's time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser(packaged: str) -> str | None:
    """$CHROMIUM, or a browser on PATH, or that of Playwright (`packaged`)."""
    return _on_path() or (packaged if Path(packaged).exists() else None)


def _on_path() -> str | None:
    given = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, (given,) if given else _NAMES)), None)


def main() -> int:
    found = _on_path()
    if found is None:
        from playwright.sync_api import sync_playwright  # takes a second

        with sync_playwright() as playwright:
            found = find_browser(playwright.chromium.executable_path)
    print(found or "there is no Chromium")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
