"""Errors of redis-py: which are transient, and which error of redis_history a user gets. The copies of a call."""

from __future__ import annotations

import builtins
import re
import socket
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError
from tenacity import RetryCallState, wait_exponential

from redis_history.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    CorruptDataError,
    UnsupportedServerError,
)
from redis_history.values.ids import rng

if TYPE_CHECKING:
    from redis_history.store.operations.base import Call


class FullJitter(wait_exponential):
    """As tenacity's `wait_random_exponential`, which would use the program's own random generator."""

    def __call__(self, retry_state: RetryCallState) -> float:
        return rng.uniform(self.min, super().__call__(retry_state))


class Attempt(Struct):
    """All copies of one writing call. `sent`: when the first copy was sent, in microseconds of the server's clock; 0
    before that. `uncertain`: a copy got no reply, so the server may execute it at any time. For the server's decision,
    see lua/_change.lua.
    """

    sent: int = 0
    uncertain: bool = False


# Transient states: a script that runs too long, loading, or a failover.
_TRANSIENT_CODES = ("BUSY ", "LOADING", "UNBLOCKED")
_TRANSIENT = ClusterDownError | MasterDownError | TryAgainError
_MOVING = ("non local key", "undeclared keys")
# Permanent TLS errors. A connection that ends during the handshake is transient.
_UNTRUSTED = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "WRONG_VERSION_NUMBER")
_SENTINEL_ERRORS = re.compile(r""" - \w+\(["']([^\n]{0,1000}?)["']\)""")
_CONNECTING = re.compile(r"^Error -?\d+ connecting to \S+\. ")  # redis-py puts this before the system's text
_CLOSED = "it closed the connection"
_NOT_EXECUTED = "no command was executed"
#: Errors of Lua and of its MessagePack decoder. The scripts check their arguments, so the stored data is damaged.
_SCRIPT_FAILURE = re.compile(
    r"user_script: ?\d+: (?:attempt to |bad argument |stack overflow|Bad data|Missing bytes)", re.IGNORECASE
)
#: The second text is of commands in scripts.
_UNKNOWN = re.compile("unknown command|unknown redis command", re.IGNORECASE)
_REASON = re.compile(r"\[SSL: (\w+)\]")


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or _is_untrusted(error):
        return False
    if isinstance(error, ConnectionError | TimeoutError | OSError | _TRANSIENT) or is_read_only(error):
        return True
    if not isinstance(error, ResponseError):
        return False
    # A script asked for a key that a moving slot has not brought yet.
    return str(error).startswith(_TRANSIENT_CODES) or any(text in str(error) for text in _MOVING)


def _is_untrusted(error: BaseException) -> bool:
    # By the text, because redis-py does not always keep the cause.
    reason = _REASON.search(str(error)) if isinstance(error, ConnectionError | OSError) else None
    return reason is not None and any(word in reason[1] for word in _UNTRUSTED)


def is_read_only(error: BaseException) -> bool:
    # Redis before 7 wraps the errors of scripts.
    return isinstance(error, ReadOnlyError) or (isinstance(error, ResponseError) and "READONLY " in str(error))


def not_executed(error: Exception) -> Exception:
    """The error, with the note that the server has executed no command of the call."""
    error.add_note(_NOT_EXECUTED)
    return error


def may_be_executed(error: Exception) -> bool:
    """Whether the server may have received the call, and sent no reply."""
    return _NOT_EXECUTED not in getattr(error, "__notes__", ())


def connection_refusal(error: BaseException | None) -> OSError | None:
    """The error of the operating system if nothing listens at the address; redis-py chains it."""
    while error is not None and not isinstance(error, ConnectionRefusedError | FileNotFoundError):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: BaseException, text: str) -> str:
    """The cause in plain words."""
    if (refusal := connection_refusal(error)) is not None:
        return f"nothing listens there ({refusal.strerror})"
    kinds, one = [], error
    while one is not None:
        kinds.append(one)
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    if any(isinstance(one, socket.gaierror) for one in kinds):
        return "its host name cannot be found"
    if isinstance(error, TimeoutError | builtins.TimeoutError):
        return "it did not answer in time"
    if "closed by server" in text or any(isinstance(one, ConnectionResetError | BrokenPipeError) for one in kinds):
        return _CLOSED
    return _CONNECTING.sub("", text)


def translate(error: Exception, server: str) -> BackendError:
    """The error of redis_history for an error of redis-py. `server`: the address, without secrets."""
    text = str(error) or type(error).__name__
    if isinstance(error, MasterNotFoundError):  # its text includes the repr of the clients
        reasons = dict.fromkeys(_SENTINEL_ERRORS.findall(text))
        text = ": ".join(filter(None, (text.partition(" : ")[0], "; ".join(reasons))))
    if isinstance(error, AuthenticationError | AuthorizationError):
        return BackendRefusedError(f"{server} refused the user name or password: {text}", reason="credentials")
    if isinstance(error, NoPermissionError) or "ACL failure in script" in text:
        return BackendRefusedError(f"{server} does not give this user a permission: {text}", reason="permission")
    if is_read_only(error):
        return BackendRefusedError(
            f"{server} is a read-only replica; connect to the primary: {text}", reason="read_only"
        )
    if isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "OOM " in text):
        return BackendRefusedError(
            f"{server} is out of memory; raise maxmemory or delete conversations: {text}", reason="out_of_memory"
        )
    if _is_untrusted(error):
        text = _CONNECTING.sub("", text)
        if "WRONG_VERSION_NUMBER" in text:
            return BackendRefusedError(
                f"{server} does not speak TLS at this port; use redis:// instead of rediss://, or its port with TLS",
                reason="certificate",
            )
        return BackendRefusedError(
            f"no secure connection to {server}: {text}; set ssl_ca_certs to the server's certificate authority, and "
            "ssl_certfile and ssl_keyfile to the client certificate that the server may ask for",
            reason="certificate",
        )
    if is_transient(error):
        reason, hint = _reason(error, text), ""
        encrypted = server.startswith("rediss")
        # With TLS 1.3, a server refuses a client after the handshake, and its reason may be lost.
        if "_ssl.c" in text or (encrypted and reason == _CLOSED and not may_be_executed(error)):
            hint = "; does the server ask for a certificate (ssl_certfile)?"
        if encrypted and text == "Timeout connecting to server":
            hint = "; does it speak TLS at this port? If not, use redis://"
        return BackendUnavailableError(f"{server} gave no answer before the deadline: {reason}{hint}")
    if isinstance(error, AskError):  # and MovedError
        return UnsupportedServerError(f"{server} is one node of a cluster; connect with redis+cluster://: {text}")
    if isinstance(error, InvalidResponse):
        return UnsupportedServerError(f"{server} does not speak the Redis protocol: {text}")
    if "WRONGTYPE" in text:
        return CorruptDataError(f"a key of this conversation belongs to another program; use another namespace: {text}")
    if "MISCONF " in text or "NOREPLICAS " in text:  # Redis before 7: inside an error of the script
        return BackendRefusedError(f"{server} rejects writes in its present state: {text}", reason="state")
    if _UNKNOWN.search(text):
        return UnsupportedServerError(f"{server} lacks a command that redis_history needs: {text}")
    if _SCRIPT_FAILURE.search(text):
        return CorruptDataError(f"a script cannot read the stored data of this conversation: {text}")
    return BackendError(f"{server} failed: {text}")


def raise_first(calls: list[Call], replies: list[Any]) -> list[Any]:
    """The replies. Raises the first error, except NoScriptError, and except permanent errors, redirections and TRYAGAIN
    of calls with `errors`."""
    for call, reply in zip(calls, replies, strict=True):
        if not isinstance(reply, ResponseError) or isinstance(reply, NoScriptError):
            continue
        if call.errors and isinstance(reply, TryAgainError | MovedError):
            continue
        if not call.errors or is_transient(reply):
            raise reply
    return replies


def raise_errors(replies: list[Any]) -> None:
    """Raises the first error among the replies."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
