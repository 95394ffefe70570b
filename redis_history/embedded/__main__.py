"""`python -m redis_history.embedded install|status`: see _cli."""

from __future__ import annotations

import sys

from ._cli import main

if __name__ == "__main__":
    sys.exit(main())
