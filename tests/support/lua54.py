"""A server as strict as Dragonfly and Upstash, over a real Redis: it runs scripts on Lua 5.4, where each key that they
use must be declared, and takes at most 3,999 arguments.

It is a proxy. Commands go to Redis as they are, and EVAL and EVALSHA run here, in lupa's Lua 5.4, with `struct` and
`cmsgpack` that return floats, as those of Dragonfly (its lua_struct.c) and Garnet do. While a script runs, no other
command does.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
from lupa.lua54 import LuaError, LuaRuntime  # type: ignore[import-untyped]

from tests.support.proxy import accepted
from tests.support.script_keys import keys_of
from tests.support.servers import RealServer

MOST_ARGUMENTS = 3999
LOCKING = b"#!lua flags=allow-key-locking\n"

_STRICT = """
local call, known = ...
local function checked(...)
  local reply = call(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end
redis = {
  call = checked,
  pcall = call,
  sha1hex = sha1hex,
  error_reply = function(text) return {err = text} end,
  status_reply = function(text) return {ok = text} end,
}
unpack, table.getn, loadstring, cjson, bit = nil, nil, nil, nil, nil
math.pow = nil
setmetatable(_G, {
  __index = function(_, name) error('script attempted to access nonexistent global variable ' .. name, 2) end,
  __newindex = function(_, name) error('script attempted to create global variable ' .. name, 2) end,
})
"""


class _Replies:
    """Reads replies of RESP2 and RESP3 from a socket, as bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")

    def close(self) -> None:
        self._file.close()

    def read(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        kind, size = line[:1], line[1:-2]
        if kind in b"$=!" and size != b"-1":
            return line + self._file.read(int(size) + 2)
        if kind in b"*~>%|" and size != b"-1":
            count = int(size) * (2 if kind in b"%|" else 1) + (1 if kind == b"|" else 0)
            return line + b"".join(self.read() for _ in range(count))
        return line


def _parsed(reply: bytes) -> Any:
    """A reply of RESP2: bytes, numbers, None, lists, and errors and states as tuples."""
    value, rest = _parse(reply)
    assert not rest
    return value


def _parse(reply: bytes) -> tuple[Any, bytes]:
    line, _, rest = reply.partition(b"\r\n")
    kind, text = line[:1], line[1:]
    if kind == b":":
        return int(text), rest
    if kind in b"+-":
        return ("ok" if kind == b"+" else "err", text), rest
    if text == b"-1":
        return None, rest
    if kind == b"$":
        return rest[: int(text)], rest[int(text) + 2 :]
    items = []
    for _ in range(int(text)):
        item, rest = _parse(rest)
        items.append(item)
    return items, rest


def _command(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class StrictServer:
    """`info`: lines of INFO in place of the server's own version. `refused`: commands that it does not know. `locks`:
    as Upstash, where scripts may have the flag; other servers reject it."""

    def __init__(
        self, path: str, *, info: dict[str, str], refused: frozenset[str] = frozenset(), locks: bool = False
    ) -> None:
        self._path = path
        self._info = info
        self._refused = refused
        self._locks = locks
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.scripts: dict[bytes, bytes] = {}
        self.functions: dict[bytes, Any] = {}
        #: Errors of scripts, and the most arguments of a command.
        self.faults: list[str] = []
        self.most_arguments = 0
        #: Whether scripts had the flag of Upstash.
        self.with_flag: set[bool] = set()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._calls = self._connect()
        self._replies = _Replies(self._calls)
        self._declared: set[bytes] = set()
        self._lua = self._runtime()
        self._accepting = threading.Thread(target=self._accept, name="strict server", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self._replies.close()
        for one in [self._calls, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    # Connections

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection

    def _accept(self) -> None:
        for client in accepted(self._listener):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True, name="connection")
            self._threads.append(thread)
            self._sockets.add(client)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = self._connect()
        requests, replies = _Replies(client), _Replies(server)
        resp3 = False
        copying: threading.Thread | None = None
        try:
            while True:
                request = requests.read()
                words = _parsed(request)
                name = words[0].upper()
                if name == b"HELLO":
                    resp3 = words[1:2] == [b"3"]
                self.most_arguments = max(self.most_arguments, len(words))
                if copying is not None or name in (b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"):
                    server.sendall(request)
                    if copying is None:
                        copying = threading.Thread(target=_copy, args=(server, client), daemon=True)
                        copying.start()
                    continue
                with self._lock:
                    reply = self._answer(words, name, resp3)
                    if reply is None:
                        server.sendall(request)
                        reply = replies.read()
                if name == b"INFO":
                    reply = self._described(reply)
                client.sendall(reply)
        except (OSError, ValueError):
            pass
        finally:
            self._sockets.discard(client)
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            if copying is not None:
                copying.join()
            for one in (requests, replies, client, server):
                one.close()

    def _described(self, reply: bytes) -> bytes:
        """INFO as this server would answer."""
        head, _, rest = reply.partition(b"\r\n")
        lines = [line for line in rest.decode().splitlines() if not line.startswith(("redis_version:", "txt:"))]
        text = "\r\n".join(
            [lines[0], *(f"{name}:{value}" for name, value in self._info.items()), *lines[1:], ""]
        ).encode()
        return b"%b%d\r\n%b%b\r\n" % (head[:1], len(text), b"txt:" if head[:1] == b"=" else b"", text)

    # Commands

    def _answer(self, words: list[bytes], name: bytes, resp3: bool) -> bytes | None:
        """The reply; None if Redis has it."""
        if len(words) > MOST_ARGUMENTS:
            return b"-ERR too many arguments\r\n"
        if name.decode() in self._refused:
            return b"-ERR unknown command '%b'\r\n" % name
        if name in (b"WAIT", b"WAITAOF"):  # about the writes of scripts, which have a connection of their own
            self._calls.sendall(_command(words))
            return self._replies.read()
        if name not in (b"EVAL", b"EVALSHA"):
            return None
        sha = words[1]
        if name == b"EVAL":
            sha = hashlib.sha1(words[1], usedforsecurity=False).hexdigest().encode()
            self.scripts[sha] = words[1]
        if sha not in self.scripts:
            return b"-NOSCRIPT No matching script.\r\n"
        count = int(words[2])
        return self._run(sha, words[3 : 3 + count], words[3 + count :], resp3)

    def _run(self, sha: bytes, keys: list[bytes], args: list[bytes], resp3: bool) -> bytes:
        source = self.scripts[sha]
        if source.startswith(LOCKING) and not self._locks:
            return b"-ERR Unexpected flag in script shebang\r\n"
        self._declared = set(keys)
        self.with_flag.add(source.startswith(LOCKING))
        try:
            if sha not in self.functions:
                body = source.removeprefix(LOCKING) if self._locks else source
                self.functions[sha] = self._lua.execute(b"return function(KEYS, ARGV)\n" + body + b"\nend")
            found = self.functions[sha](self._lua.table_from(keys), self._lua.table_from(args))
            return self._encoded(found, resp3)
        except LuaError as error:
            return self._failed(str(error))
        except _RefusedError as error:
            return b"-%b\r\n" % error.args[0]

    def _failed(self, text: str) -> bytes:
        self.faults.append(text)
        return b"-ERR user_script: %b\r\n" % text.replace("\r", " ").replace("\n", " ").encode()

    def _encoded(self, value: Any, resp3: bool) -> bytes:
        if value is None or value is False:
            return b"_\r\n" if resp3 else b"$-1\r\n"
        if value is True:
            return b":1\r\n"
        if isinstance(value, int):
            return b":%d\r\n" % value
        if isinstance(value, float):
            self.faults.append(f"a float in a reply: {value}")
            text = b"%.17g" % value
            return b",%b\r\n" % text if resp3 else b"$%d\r\n%b\r\n" % (len(text), text)
        if isinstance(value, bytes):
            return b"$%d\r\n%b\r\n" % (len(value), value)
        if value[b"err"] is not None:
            return b"-%b\r\n" % value[b"err"]
        if value[b"ok"] is not None:
            return b"+%b\r\n" % value[b"ok"]
        items: list[Any] = []
        while (item := value[len(items) + 1]) is not None:
            items.append(self._encoded(item, resp3))
        return b"*%d\r\n%b" % (len(items), b"".join(items))

    # The functions of scripts

    def _runtime(self) -> Any:
        lua = LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False)
        names = lua.globals()
        names[b"sha1hex"] = lambda text: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        names[b"struct"] = lua.table_from({b"pack": _pack, b"unpack": _unpack})
        names[b"cmsgpack"] = lua.table_from({b"pack": self._to_messagepack, b"unpack": self._of_messagepack})
        lua.execute(_STRICT.encode(), self._called)
        return lua

    def _called(self, *given: Any) -> Any:
        words = []
        for word in given:
            if isinstance(word, bool) or not isinstance(word, int | float | bytes):
                raise _RefusedError(b"ERR Lua redis() command arguments must be strings or integers")
            words.append(
                word if isinstance(word, bytes) else b"%d" % word if isinstance(word, int) else b"%.17g" % word
            )
        for key in keys_of(words):
            if key not in self._declared:
                self.faults.append(f"undeclared key: {words[0].decode()} {key!r}")
                return self._lua.table_from({b"err": b"ERR script tried accessing undeclared key"})
        self._calls.sendall(_command(words))
        reply = _parsed(self._replies.read())
        if words[0].upper() in (b"ZSCORE",) and reply is not None:
            return float(reply)
        scored = any(word.upper() == b"WITHSCORES" for word in words[3:]) or words[0].upper() == b"ZPOPMIN"
        if scored and isinstance(reply, list):
            reply = [item if at % 2 == 0 else float(item) for at, item in enumerate(reply)]
        return self._to_lua(reply)

    def _to_lua(self, value: Any) -> Any:
        if value is None:
            return False
        if isinstance(value, tuple):
            return self._lua.table_from({value[0].encode(): value[1]})
        return self._lua.table_from(list(map(self._to_lua, value))) if isinstance(value, list) else value

    def _to_messagepack(self, *values: Any) -> bytes:
        return b"".join(msgspec.msgpack.encode(self._plain(value)) for value in values)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bytes):
            return msgspec.Raw(_packed_text(value))
        if value is None or isinstance(value, bool | int | float):
            return value
        items: list[Any] = []
        while (item := value[len(items) + 1]) is not None:
            items.append(self._plain(item))
        assert len(items) == len(list(value)), "the scripts pack arrays only"
        return items

    def _of_messagepack(self, packed: bytes) -> Any:
        found = tuple(self._floats(value) for value in _unpacked_all(packed))
        return found if len(found) != 1 else found[0]

    def _floats(self, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return float(value)
        return self._lua.table_from(list(map(self._floats, value))) if isinstance(value, list) else value


class _RefusedError(Exception):
    pass


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)


# struct, with the formats that the scripts use: big-endian integers of any size, and 'c' with a size


def _fields(form: bytes) -> Iterator[tuple[str, int]]:
    text = form.decode()
    assert text[0] == ">", form
    at = 1
    while at < len(text):
        kind = text[at]
        at += 1
        digits = ""
        while at < len(text) and text[at].isdigit():
            digits += text[at]
            at += 1
        yield kind, int(digits) if digits else {"B": 1, "b": 1}[kind]


def _pack(form: bytes, *values: Any) -> bytes:
    found, given = b"", iter(values)
    for kind, size in _fields(form):
        value = next(given)
        if kind == "c":
            assert len(value) >= size
            found += value[:size]
        else:
            number = int(float(value)) if isinstance(value, bytes | float) else value
            if isinstance(value, float):
                assert value.is_integer(), f"struct.pack of {value}"
            found += (number % (1 << 8 * size)).to_bytes(size, "big")
    return found


def _unpack(form: bytes, data: bytes, at: Any = 1) -> Any:
    place, values = int(at) - 1, []
    for kind, size in _fields(form):
        piece = data[place : place + size]
        if len(piece) < size:
            raise ValueError("data string too short")
        values.append(piece if kind == "c" else float(int.from_bytes(piece, "big", signed=kind in "bi")))
        place += size
    return (*values, place + 1)


# cmsgpack, with text of any bytes


def _packed_text(text: bytes) -> bytes:
    size = len(text)
    if size < 32:
        return bytes([0xA0 + size]) + text
    for most, head, width in ((256, 0xD9, 1), (65536, 0xDA, 2)):
        if size < most:
            return bytes([head]) + size.to_bytes(width, "big") + text
    return b"\xdb" + size.to_bytes(4, "big") + text


def _unpacked_all(packed: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(packed):
        value, at = _unpacked(packed, at)
        found.append(value)
    return found


_NUMBERS: dict[int, str] = {
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q", 0xCA: ">f",
    0xCB: ">d",
}  # fmt: skip


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    head = data[at]
    at += 1
    if head < 0x80:
        return head, at
    if head >= 0xE0:
        return head - 256, at
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], at
    if head in _NUMBERS:
        size = struct.calcsize(_NUMBERS[head])
        return struct.unpack_from(_NUMBERS[head], data, at)[0], at + size
    if 0xA0 <= head < 0xC0:
        return data[at : at + head - 0xA0], at + head - 0xA0
    width = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xDC: 2, 0xDD: 4}.get(head, 0)
    size = int.from_bytes(data[at : at + width], "big") if width else head - 0x90
    at += width
    if head in (0xD9, 0xDA, 0xDB, 0xC4, 0xC5, 0xC6):
        return data[at : at + size], at + size
    assert 0x90 <= head < 0xA0 or head in (0xDC, 0xDD), f"the scripts unpack no maps ({head:#x})"
    items = []
    for _ in range(size):
        item, at = _unpacked(data, at)
        items.append(item)
    return items, at


class StrictRedis(RealServer):
    """A Redis without search behind a `StrictServer`."""

    def __init__(self) -> None:
        super().__init__("plain")

    def start(self) -> StrictRedis:
        super().start()
        self.strict = StrictServer(str(self.socket), info={"redis_version": self.binary.version})
        self.url = self.strict.url
        return self

    def close(self) -> None:
        self.strict.close()
        super().close()
        assert not self.strict.faults, self.strict.faults[:5]
