"""The Lua scripts of the operations: each is the file next to its operation, after parts that it shares with others.

An operation declares the names of the arguments and keys of its script, in order, when it loads the script. Lua writes
`ARG.name` and `KEY.name`, and `Script.args` takes the values by name.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, NamedTuple

from redis_history.store.changelog import Kind


class Arguments(NamedTuple):
    """The names of arguments, in order. Those from `required` on may be left out at the end. `rest`: the name of any
    number of values behind them, or ""."""

    names: tuple[str, ...]
    required: int
    rest: str = ""

    @classmethod
    def of(cls, declared: str) -> Arguments:
        """Names with blanks between; "name?" may be left out, and the last one, "*name", is any number of values."""
        *words, last = declared.split() or [""]
        rest = last[1:] if last[:1] == "*" else ""
        words += [last] if last and not rest else []
        required = next((at for at, word in enumerate(words) if word[-1] == "?"), len(words))
        return cls(tuple(word.rstrip("?") for word in words), required, rest)

    def packer(self, name: str) -> Callable[..., list[bytes]]:
        """A function that takes the values by name, and returns them in order. Raises TypeError for a missing or an
        unknown name, as Python does, because it is a function with these parameters: a loop that compares names would
        take 0.5 microseconds of an append."""
        parameters = [*self.names[: self.required], *(f"{one}=None" for one in self.names[self.required :])]
        values = [*self.names]
        if self.rest:
            parameters.append(f"{self.rest}=()")
            values.append(f"*{self.rest}")
        packed = f"[{', '.join(values)}]"
        if self.required < len(self.names):
            packed = f"given({packed})"
        code = f"lambda {', '.join(['*', *parameters] if parameters else '')}: {packed}"
        pack: Callable[..., list[bytes]] = eval(code, {"given": _given})  # noqa: S307
        pack.__qualname__ = name
        return pack


def _given(values: list[bytes | None]) -> list[bytes]:
    """The values without those that were left out at the end."""
    given = [value for value in values if value is not None]
    if None in values[: len(given)]:
        raise TypeError("an argument is missing before one that is given")
    return given


#: The first arguments and keys of all scripts that begin with _change.lua, which describes them.
CHANGE_ARGS: Final = "token expected_revision condition log_length name ttl sent publishing flags"
CHANGE_KEYS: Final = "state messages log registry"
CHANGE: Final = Arguments.of(CHANGE_ARGS)
pack_change: Final = CHANGE.packer("_change.lua")


class Script(NamedTuple):
    """A Lua script. `sha`: the SHA-1 of its source, for EVALSHA. `asks`: it reads, and may ask for further keys.
    `args` takes the values of its arguments by name, after the action if it has actions, and returns them in order.
    It raises TypeError for a missing or an unknown name."""

    name: str
    sha: bytes
    source: bytes
    asks: bool
    args: Callable[..., list[bytes]]


def load_script(
    name: str,
    *preludes: str,
    args: str = "",
    keys: str = "",
    actions: Mapping[str, str] | None = None,
    asks: bool = False,
) -> Script:
    """The script `name`.lua of this folder, after the files `preludes` of the folder lua.

    `args` and `keys`: its own, after those of all changes if _change.lua is in it (see `Arguments.of`). `actions`: the
    further arguments of each action, which is the first argument. In Lua, ARG.name and KEY.name are the values, and
    START.name is the number of the first value of "*name". Raises ValueError if the script uses a name that is not
    declared, or a number in place of a name, or if it does not use a name that is declared.
    """
    forms = {action: Arguments.of(f"{args} {own}") for action, own in (actions or {"": ""}).items()}
    changes = "_change" in preludes
    named = _named("ARG", "ARGV", [(CHANGE.names if changes else (), form) for form in forms.values()])
    first_keys = Arguments.of(CHANGE_KEYS).names if changes else ()
    named |= _named("KEY", "KEYS", [(first_keys, Arguments.of(keys))])
    source = _source(*preludes, name)
    declared: list[bytes] = []
    whole = source
    while _INCLUDE.search(whole):
        whole = _INCLUDE.sub(lambda line: _source(*line[1].decode().split()), whole)
    check_names(name, _COMMENT.sub(b"", whole), named)
    uses = Counter(_NAME.findall(whole))
    while _INCLUDE.search(source):  # an included file may include others
        source = _INCLUDE.sub(partial(_included, declared, uses), source)
    source = _ARGUMENT.sub(lambda found: named.get(found[0], found[0]), source)
    source = _KIND.sub(lambda found: b"%d" % getattr(Kind, found[1].decode()), source)
    if declared:
        source = b"local %b\n%b" % (b", ".join(dict.fromkeys(declared)), source)
    packers = {action: form.packer(f"{name}.lua") for action, form in forms.items()}
    pack = partial(_of_action, packers) if actions else packers[""]
    SCRIPTS[name] = _script(Script(name, b"", b"", asks, pack), b"%b\n%b" % (_source("_lua_versions"), source))
    return SCRIPTS[name]


def _of_action(packers: Mapping[str, Callable[..., list[bytes]]], action: str, /, **values: Any) -> list[bytes]:
    return packers[action](action=action.encode(), **values)


def _script(script: Script, source: bytes) -> Script:
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return script._replace(sha=sha, source=source)


@cache
def with_key_locking(script: Script) -> Script:
    """The script for Upstash, where only this flag lets calls for different conversations run side by side. Redis
    rejects the flag."""
    return _script(script, b"#!lua flags=allow-key-locking\n" + script.source)


#: All scripts of the imported operations.
SCRIPTS: Final[dict[str, Script]] = {}


#: A line of a script that includes other files. Their functions are created only if this part runs, because each takes
#: 0.3 microseconds. What is used elsewhere is declared at the start of the script. The rest is declared where the files
#: are included, because a function of Lua has at most 200 locals at a time.
_INCLUDE = re.compile(rb"^ *-- include (\w+(?: \w+)*)$", re.MULTILINE)
#: The number of a kind of change. It is inserted here, because a script has at most 200 locals.
_KIND = re.compile(rb"KIND\.([A-Z_]+)")
_LOCAL = re.compile(rb"^local (function )?(\w+(?:, \w+)*)", re.MULTILINE)
#: Names of arguments and keys, and numbers in place of names.
_ARGUMENT: Final = re.compile(rb"\b(?:ARG|KEY|START)\.\w+")
_NUMBERED: Final = re.compile(
    rb"(?:ARGV|KEYS)\[\d|unpack\((?:ARGV|KEYS), \d|(?:[2-9]|\d\d), #(?:ARGV|KEYS)\b|#(?:ARGV|KEYS) [<>=~]=? \d"
)
_COMMENT: Final = re.compile(rb"--.*")
#: A name that may be a local one.
_NAME: Final = re.compile(rb"(?<!ARG\.)(?<!KEY\.)(?<!START\.)\b\w+")


def _named(prefix: str, table: str, forms: Iterable[tuple[tuple[str, ...], Arguments]]) -> dict[bytes, bytes]:
    """The Lua expression that replaces each name."""
    named: dict[str, str] = {}
    for first, own in forms:
        names = [*first, *own.names]
        ours = {f"{prefix}.{name}": f"{table}[{number}]" for number, name in enumerate(names, 1)}
        if own.rest:
            ours[f"START.{own.rest}"] = str(len(names) + 1)
        if len(ours) < len(names) or any(named.get(name, ours[name]) != ours[name] for name in ours):
            raise ValueError(f"a name is declared for two of {', '.join(ours)}")
        named |= ours
    return {name.encode(): lua.encode() for name, lua in named.items()}


def check_names(name: str, code: bytes, named: Mapping[bytes, bytes]) -> None:
    """Raises ValueError if the names in the code of a script are not those that are declared."""
    used = set(_ARGUMENT.findall(code))
    unused = {one for one in named if not one.startswith(b"START.")} - used
    for wrong, what in ((used - named.keys(), "not declared"), (unused, "declared, but not used")):
        if wrong:
            raise ValueError(f"{name}.lua: {what}: {b', '.join(sorted(wrong)).decode()}")
    if found := _NUMBERED.search(code):
        raise ValueError(f"{name}.lua: declare a name for {found[0].decode()!r}")


def _included(declared: list[bytes], uses: Counter[bytes], line: re.Match[bytes]) -> bytes:
    part = _source(*line[1].decode().split())
    here, own = Counter(_NAME.findall(part)), list[bytes]()
    for found in _LOCAL.finditer(part):
        for name in found[2].split(b", "):
            (own if here[name] == uses[name] else declared).append(name)
    part = re.sub(rb"^local \w+(?:, \w+)*(?: --.*)?$", b"", part, flags=re.MULTILINE)
    part = _LOCAL.sub(lambda found: (found[1] or b"") + found[2], part)
    return b"local %b\n%b" % (b", ".join(dict.fromkeys(own)), part) if own else part


def _source(*parts: str) -> bytes:
    folder = files("redis_history.store.operations")
    return b"\n".join((folder / ("lua" if part[0] == "_" else "") / f"{part}.lua").read_bytes() for part in parts)


#: The first parts of scripts that change messages, and the parts that find messages by position.
WRITING: Final = (
    "_declared", "_member", "_live", "_archive", "_contents", "_change", "_lists", "_requests", "_approvals", "_life",
    "_journal", "_document", "_documents",
)  # fmt: skip
PLACES: Final = ("_locate", "_archived")
