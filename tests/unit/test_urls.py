"""Store URLs: what each means, and that no secret leaves one."""

from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import ConfigurationError
from redis_history.store.urls import SCHEMES, embedded_server, parse_several, parse_url


@pytest.mark.parametrize(
    ("url", "scheme", "address", "path"),
    [
        ("redis://localhost:6379/0", "redis", "redis://localhost:6379/0", "localhost:6379/0"),
        ("redis://", "redis", "redis://", ""),
        ("rediss://user:secret@host/1", "rediss", "rediss://host/1", "host/1"),
        ("redis://:secret@host", "redis", "redis://host", "host"),
        ("redis://user:se@cret@host:1/2", "redis", "redis://host:1/2", "host:1/2"),
        ("redis://host?password=secret&username=u", "redis", "redis://host", "host"),
        ("redis://[::1]:6379/0", "redis", "redis://[::1]:6379/0", "[::1]:6379/0"),
        ("unix:///tmp/r.sock?db=2", "unix", "unix:///tmp/r.sock", "/tmp/r.sock"),
        ("memory://", "memory", "memory://", ""),
        ("redis+cluster://a:1,b:2/?x=1", "redis+cluster", "redis+cluster://a:1,b:2/", "a:1,b:2/"),
        ("rediss+cluster://u:s@a", "rediss+cluster", "rediss+cluster://a", "a"),
        ("redis+sentinel://:s@a,b/chat/2", "redis+sentinel", "redis+sentinel://a,b/chat/2", "a,b/chat/2"),
        ("embedded://", "embedded", "embedded://", ""),
        ("embedded:///data/my%20chats", "embedded", "embedded:///data/my%20chats", "/data/my chats"),
    ],
)
def test_urls(url: str, scheme: str, address: str, path: str) -> None:
    assert parse_url(url) == (scheme, url, address, path)
    assert scheme in SCHEMES


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:6379", "localhost", "http://host", "redis:host", "redis:/host", "redis//host"),
        *("redis://host:port", "redis://host:99999", "redis://[::1", "redis+cluster://", "redis+cluster://a,,b"),
        *("redis+cluster://a:1,b:port", "redis+cluster://a:1,b:99999", "redis+cluster://a/1"),
        *("redis+sentinel://a:1,b:2", "redis+sentinel://a:1,b:2/", "redis+sentinel://a/chat/zero"),
        *("redis+sentinel:///chat", None, 5, b"redis://host", ["redis://host"]),
    ],
)
def test_invalid_urls(url: Any) -> None:
    with pytest.raises(ConfigurationError):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@host:port",
        "redis://user:hunter2@host:99999",
        "redis://:hunter2@[::1",
        "redis://user:hunter2/3@host",
        "redis://user:hunter2\uff20host",
        "redis://h\u2100:hunter2@x",
        "redis+cluster://user:hunter2@a,b:port",
        "redis+cluster://user:hunter2@a,user:hunter2@b",
        "redis+cluster://user:hunter2/3@a,b",
        "redis+sentinel://user:hunter2@a,b",
        "redis+sentinel://a,b?sentinel_password=hunter2",
        "redis:/user:hunter2@host",
        "redis//user:hunter2@host",
        "redsi://user:hunter2@host",
        "redsi://host?password=hunter2",
        "http://user:hunter2@host/@",
    ],
)
def test_an_error_shows_no_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(url)
    shown: BaseException | None = caught.value
    while shown is not None:
        assert "hunter2" not in str(shown)
        shown = shown.__cause__


@pytest.mark.parametrize(
    ("url", "several"),
    [
        ("redis+cluster://a", ((("a", 6379),), "redis://a:6379/0?", "", {})),
        (
            "rediss+cluster://u:p%2F@a:1,[::1]:2,b/?socket_timeout=3",
            ((("a", 1), ("::1", 2), ("b", 6379)), "rediss://u:p%2F@a:1/0?socket_timeout=3", "", {}),
        ),
        ("redis+cluster://[::1]/0", ((("::1", 6379),), "redis://[::1]:6379/0?", "", {})),
        ("redis+sentinel://a,b:1/chat", ((("a", 26379), ("b", 1)), "redis://a:26379/0?", "chat", {})),
        (
            "redis+sentinel://:p@a/my%20chats/3?sentinel_password=s%26t&client_name=x",
            ((("a", 26379),), "redis://:p@a:26379/3?client_name=x", "my chats", {"sentinel_password": "s&t"}),
        ),
    ],
)
def test_urls_with_several_hosts(url: str, several: object) -> None:
    assert parse_several(parse_url(url).url) == several
    assert redis.ConnectionPool.from_url(parse_several(url).url)


secrets = st.text("abcXYZ019-._~!$&'()*+,;=%", min_size=6, max_size=20)


@given(secrets, secrets)
def test_an_address_shows_no_secret(user: str, secret: str) -> None:
    target = parse_url(f"redis://{user}:{secret}@host:6379/0?ssl_password={secret}")
    assert target.address == "redis://host:6379/0"
    target = parse_url(f"redis+cluster://{user}:{secret}@host:6379,other:6379?ssl_password={secret}")
    assert target.address == "redis+cluster://host:6379,other:6379"


@given(
    st.text(max_size=40) | st.text("redis:/@[]?#%0aunx,", max_size=30),
    st.sampled_from(["", "redis://", "redis+cluster://", "redis+sentinel://"]),
)
def test_any_text_is_a_target_or_refused(text: str, scheme: str) -> None:
    try:
        target = parse_url(scheme + text)
    except ConfigurationError:
        return
    assert target.scheme in SCHEMES
    assert "+" not in scheme or parse_several(target.url).hosts


@pytest.mark.parametrize("url", ["embedded://folder", "embedded://folder/sub", "embedded://.", "embedded://~/chats"])
def test_an_embedded_folder_is_absolute(url: str) -> None:
    with pytest.raises(ConfigurationError):
        embedded_server(parse_url(url))
