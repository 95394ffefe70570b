from __future__ import annotations

from tests.web.browsing import chromium, site, window, windows

__all__ = ["chromium", "site", "window", "windows"]
