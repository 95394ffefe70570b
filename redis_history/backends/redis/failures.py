"""Which errors of redis-py pass by themselves, and what each of the others means to a user."""

from __future__ import annotations

import builtins
import re
import socket

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError
from tenacity import RetryCallState, wait_exponential

from redis_history._ids import rng
from redis_history.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    CorruptDataError,
    UnsupportedServerError,
)


class FullJitter(wait_exponential):
    """As `wait_random_exponential` of tenacity, but that draws from the program's generator."""

    def __call__(self, retry_state: RetryCallState) -> float:
        return rng.uniform(self.min, super().__call__(retry_state))


# Replies that name a passing state: a script of somebody runs too long; a failover is under way.
_PASSING = ("BUSY ", "LOADING", "UNBLOCKED")
_PASSING_KINDS = ClusterDownError | MasterDownError | TryAgainError  # redis-py takes the word off their texts
# Of TLS, what does not pass. A connection that ends in the middle of a handshake is as passing as any other.
_UNTRUSTED = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "WRONG_VERSION_NUMBER")
_SENTINEL_SAID = re.compile(r""" - \w+\(["']([^\n]{0,1000}?)["']\)""")
_CONNECTING = re.compile(r"^Error -?\d+ connecting to \S+\. ")  # redis-py's words before those of the system
_REASON = re.compile(r"\[SSL: (\w+)\]")


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed a little later."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or _is_untrusted(error):
        return False
    if isinstance(error, ConnectionError | TimeoutError | OSError | _PASSING_KINDS) or _is_read_only(error):
        return True
    if not isinstance(error, ResponseError):
        return False
    # Of scripts: while a slot moves between nodes, a key that is not there yet cannot be looked for.
    return str(error).startswith(_PASSING) or "non local key" in str(error)


def _is_untrusted(error: BaseException) -> bool:
    # By the text: of what is behind it redis-py sometimes keeps no more.
    reason = _REASON.search(str(error)) if isinstance(error, ConnectionError | OSError) else None
    return reason is not None and any(word in reason[1] for word in _UNTRUSTED)


def _is_read_only(error: BaseException) -> bool:
    # Redis before 7 wraps the errors of scripts.
    return isinstance(error, ReadOnlyError) or (isinstance(error, ResponseError) and "READONLY " in str(error))


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "OOM " in str(error))


def connection_refusal(error: BaseException | None) -> OSError | None:
    """The error of the operating system if nothing listens at the address; redis-py chains it."""
    while error is not None and not isinstance(error, ConnectionRefusedError | FileNotFoundError):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: BaseException, text: str) -> str:
    """The event, without redis-py's words for it."""
    if (refusal := connection_refusal(error)) is not None:
        return f"nothing listens there ({refusal.strerror})"
    kinds, one = [], error
    while one is not None:
        kinds.append(one)
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    if any(isinstance(one, socket.gaierror) for one in kinds):
        return "its host name cannot be found"
    if isinstance(error, TimeoutError | builtins.TimeoutError):
        return "it is silent"
    if "closed by server" in text or any(isinstance(one, ConnectionResetError | BrokenPipeError) for one in kinds):
        return "it closed the connection"
    return _CONNECTING.sub("", text)


def translate(error: Exception, server: str) -> BackendError:
    """The error of our own tree that says what `error` means; `server` is the address, without secrets."""
    text = str(error) or type(error).__name__
    if isinstance(error, MasterNotFoundError):  # redis-py shows the whole of its clients
        reasons = dict.fromkeys(_SENTINEL_SAID.findall(text))
        text = ": ".join(filter(None, (text.partition(" : ")[0], "; ".join(reasons))))
    if isinstance(error, AuthenticationError | AuthorizationError):
        return BackendRefusedError(f"{server} refused the user name or password: {text}", reason="credentials")
    if isinstance(error, NoPermissionError) or "ACL failure in script" in text:
        return BackendRefusedError(
            f"{server} does not allow this user what redis_history needs: {text}", reason="permission"
        )
    if _is_read_only(error):
        return BackendRefusedError(
            f"{server} is a read-only replica; connect to the primary: {text}", reason="read_only"
        )
    if _is_out_of_memory(error):
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
            f"no secure connection to {server}: {text}; ssl_ca_certs names who signed the server's certificate, "
            "ssl_certfile and ssl_keyfile the one the server may ask for",
            reason="certificate",
        )
    if is_transient(error):
        hint = "; does the server ask for a certificate (ssl_certfile)?" if "_ssl.c" in text else ""
        return BackendUnavailableError(f"{server} gave no answer before the deadline: {_reason(error, text)}{hint}")
    if isinstance(error, AskError):  # and MovedError
        return UnsupportedServerError(f"{server} is one node of a cluster; connect with redis+cluster://: {text}")
    if isinstance(error, InvalidResponse):
        return UnsupportedServerError(f"{server} does not speak the Redis protocol: {text}")
    if "WRONGTYPE" in text:
        return CorruptDataError(f"a key of this conversation holds something else; use another namespace: {text}")
    if "XADD is equal or smaller" in text:
        return CorruptDataError(
            "the change log of this conversation is ahead of its state, as if only some of its keys had been restored "
            f"from a backup: restore all of them, or delete the conversation ({text})"
        )
    if "MISCONF " in text or "NOREPLICAS " in text:  # Redis before 7: inside an error of the script
        return BackendRefusedError(f"{server} takes no writes in the state it is in: {text}", reason="state")
    if "unknown command" in text.lower():
        return UnsupportedServerError(f"{server} lacks a command that redis_history needs: {text}")
    return BackendError(f"{server} failed: {text}")
