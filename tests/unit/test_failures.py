"""The meaning of each error of redis-py: whether it is transient, and which error the user gets."""

import asyncio
from typing import Any

import pytest
import redis.exceptions
from redis.connection import DefaultParser
from redis.sentinel import MasterNotFoundError

from redis_history.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    ConfigurationError,
    CorruptDataError,
    UnsupportedServerError,
)
from redis_history.store.operations.failures import is_transient, not_executed, translate
from redis_history.store.retry import RetryPolicy

WHERE = "redis://example:6379/0"
READONLY = "READONLY You can't write against a read only replica."
OOM = "OOM command not allowed when used memory > 'maxmemory'."
#: How a server before Redis 7 passes on an error from inside a script.
INSIDE = "ERR Error running script (call to f_5e0b1c): @user_script:54: @user_script: 54: -"


def said(line: str) -> Exception:
    """The exception that redis-py makes of an error reply: it cuts off the codes it knows."""
    error = DefaultParser.parse_error(line)
    assert isinstance(error, Exception)
    return error


PASSING = [
    redis.exceptions.ConnectionError("Connection refused"),
    redis.exceptions.TimeoutError("Timeout reading from socket"),
    redis.exceptions.MaxConnectionsError("Too many connections"),
    redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    ConnectionResetError(104, "Connection reset by peer"),
    ConnectionRefusedError(111, "Connection refused"),
    BrokenPipeError(32, "Broken pipe"),
    TimeoutError("timed out"),
    OSError(113, "No route to host"),
    redis.exceptions.ConnectionError("Error 8 while writing to socket. EOF occurred (_ssl.c:2427)."),
    redis.exceptions.ConnectionError("[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] (_ssl.c:2580)"),
    said("LOADING Redis is loading the dataset in memory"),
    said("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
    said("CLUSTERDOWN The cluster is down"),
    said("CLUSTERDOWN Hash slot not served"),
    said("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
    said("TRYAGAIN Multiple keys request during rehashing of slot"),
    said("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"),
    said("ERR max number of clients reached"),
]
READ_ONLY = [said(READONLY), said(f"{READONLY} script: 5e0b1c, on @user_script:54."), said(INSIDE + READONLY)]
REFUSED = [
    said("NOAUTH Authentication required."),
    said("WRONGPASS invalid username-password pair or user is disabled."),
    said("ERR invalid password"),
    said("NOPERM this user has no permissions to run the 'evalsha' command"),
    said("NOPERM this user has no permissions to access one of the keys used as arguments"),
    redis.exceptions.AuthorizationError("no"),
    said(OOM),
    said(f"{OOM} script: 5e0b1c, on @user_script:54."),
    said(INSIDE + OOM),
    said("NOREPLICAS Not enough good replicas to write."),
    said(INSIDE + "NOREPLICAS Not enough good replicas to write."),
    said(INSIDE + "MISCONF Errors writing to the AOF file: No space left on device"),
    redis.exceptions.ConnectionError("Error 1. [SSL: CERTIFICATE_VERIFY_FAILED] certificate"),
    redis.exceptions.ConnectionError("Error while reading: (1, '[SSL: TLSV1_ALERT_UNKNOWN_CA] x')"),
]
OTHER: list[tuple[Exception, type[BackendError]]] = [
    (redis.exceptions.InvalidResponse("Protocol Error: b'HTTP/1.1 400'"), UnsupportedServerError),
    (said("ERR unknown command 'EVALSHA', with args beginning with: "), UnsupportedServerError),
    (said("ERR unknown command `XADD`, with args beginning with: "), UnsupportedServerError),
    (said("WRONGTYPE Operation against a key holding the wrong kind of value"), CorruptDataError),
    (said(INSIDE + "WRONGTYPE Operation against a key holding the wrong kind of value"), CorruptDataError),
    (said("CROSSSLOT Keys in request don't hash to the same slot"), BackendError),
    (said("ERR DB index is out of range"), BackendError),
    (said("NOSCRIPT No matching script. Please use EVAL."), BackendError),
    (redis.exceptions.DataError("Invalid input of type"), BackendError),
    (redis.exceptions.ResponseError(""), BackendError),
    (redis.exceptions.RedisError(), BackendError),
]


def name(value: Any) -> str:
    return f"{type(value).__name__}-{str(value)[:24]}" if isinstance(value, Exception) else ""


CASES = [
    *((error, True, BackendUnavailableError) for error in PASSING),
    *((error, True, BackendRefusedError) for error in READ_ONLY),  # a replica may become the primary soon
    *((error, False, BackendRefusedError) for error in REFUSED),
    *((error, False, kind) for error, kind in OTHER),
]


@pytest.mark.parametrize(("error", "transient", "kind"), CASES, ids=name)
def test_each_error_is_translated(error: Exception, transient: bool, kind: type[BackendError]) -> None:
    assert is_transient(error) == transient
    translated = translate(error, WHERE)
    assert type(translated) is kind
    assert WHERE in str(translated) or kind is CorruptDataError
    own = isinstance(error, OSError | redis.exceptions.TimeoutError) and not isinstance(translated, BackendRefusedError)
    assert own or (str(error) or type(error).__name__) in str(translated), "the server's words are never lost"


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("BUSY "), KeyboardInterrupt()])
def test_errors_of_a_program_are_not_transient(error: BaseException) -> None:
    assert not is_transient(error)


EVERY = {
    name: kind
    for name, kind in vars(redis.exceptions).items()
    if isinstance(kind, type) and issubclass(kind, redis.exceptions.RedisError)
}


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_of_redis_py_is_translated(kind: str) -> None:
    error = EVERY[kind]("1 host:6379")
    ours = translate(error, WHERE)
    assert isinstance(ours, BackendError)
    if is_transient(error):
        assert isinstance(ours, BackendUnavailableError | BackendRefusedError)


@pytest.mark.parametrize(
    "fields",
    [
        {"deadline": -1},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"deadline": None},
        {"deadline": "10"},
        {"first_wait": 0},
        {"first_wait": -1},
        {"first_wait": 2.0},
        {"first_wait": None},
        {"longest_wait": 0.001},
        {"longest_wait": float("nan")},
        {"longest_wait": "1"},
        {"on_retry": "log"},
        {"on_retry": asyncio.sleep},
    ],
)
def test_invalid_retry_policies(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**fields)


def test_a_connection_that_is_closed_at_once_may_lack_a_certificate() -> None:
    """With TLS 1.3 a server refuses a client after the handshake, and the client may only see that it is closed."""
    closed = redis.exceptions.ConnectionError("Connection closed by server.")
    assert "ssl_certfile" not in str(translate(closed, "rediss://a:1/0")), "it has worked before"
    assert "ssl_certfile" in str(translate(not_executed(closed), "rediss://a:1/0"))
    assert "ssl_certfile" not in str(translate(closed, "redis://a:1/0"))


def test_missing_sentinels_are_reported_briefly() -> None:
    sentinel = "<redis.sentinel.Sentinel(sentinels=[<redis.client.Redis(<ConnectionPool(host=a,port=1)>)>])>"
    said = f"No master found for 'main' : {sentinel} - ConnectionError('Error 111 connecting to a:1. Refused.')"
    translated = translate(MasterNotFoundError(said), "redis+sentinel://a:1/main")
    assert isinstance(translated, BackendUnavailableError)
    assert str(translated).endswith("the deadline: No master found for 'main': Error 111 connecting to a:1. Refused.")
    assert str(translate(MasterNotFoundError("No master found for 'main'"), "s")).endswith("for 'main'")
