"""`python -m redis_history.demo`: see cli."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from redis_history.demo.cli import main

        status = main()
    except KeyboardInterrupt:  # before main could say it in its own way
        status = 130
    sys.exit(status)
