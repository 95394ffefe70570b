"""The token, cookies, host names, origins, and the headers of responses."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from redis_history import AsyncHistoryStore, user
from redis_history.errors import ConfigurationError
from redis_history.store.retry import RetryPolicy
from redis_history.web import Limits, LiveView, access, allow_all, routing
from redis_history.web import application as module
from redis_history.web.application import application
from tests.support.servers import free_port
from tests.support.web import TOKEN, Stream, at, client, listening

WRONG = "wrong-token-of-the-tests"
PATHS = (
    "", "static/index.html", "static/none.js", "v1/status", "v1/conversations", at("c"), at("c", "messages"),
    at("c", "messages", "m"), at("c", "messages", "m", "originals"), at("c", "events"), "v1/nothing",
    "v1/search?q=x", "v1/events", "nothing",
)  # fmt: skip


async def raw(port: int, request: str) -> bytes:
    """The answer to a request that an HTTP client would not send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{request}\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.proves("sign-in")
async def test_requests_without_the_token_are_rejected(make: Any) -> None:
    credentials = [{}] + [
        {"Authorization": value} for value in ("Bearer", f"Bearer {WRONG}", f"Bearer {TOKEN}x", f"Basic {TOKEN}")
    ]
    for headers in (*credentials, {"Cookie": f"redis_history={TOKEN}; token={TOKEN}"}):
        async with client(make(), headers=headers) as web:
            for path in PATHS:
                refused = await web.get(path)
                assert (refused.status_code, refused.json()["code"]) == (401, "no_token"), path
                assert refused.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in refused.text
            page = await web.get("/", headers={"Accept": "text/html,*/*"})
            assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
            assert "redis-history serve" in page.text, "people read what to do"


async def test_a_url_with_the_token_sets_a_cookie(make: Any) -> None:
    async with client(make(), headers={}) as web:
        wrong = await web.get(f"/?token={WRONG}")
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        signed_in = await web.get(f"/?token={TOKEN}")
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "./")
        cookie = signed_in.headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert [(await web.get(path)).status_code for path in ("/", "v1/status")] == [200, 200]
        name, value = next(iter(web.cookies.items()))
        web.cookies.clear()
        web.cookies.set(name, value[:-1] + ("0" if value[-1] != "0" else "1"))
        assert (await web.get("v1/status")).status_code == 401
        assert (await web.get(f"v1/status?token={TOKEN}")).status_code == 401, "only the page takes it from a URL"


@pytest.mark.proves("tokens")
@pytest.mark.parametrize(
    ("options", "scheme", "headers", "secure"),
    [
        ({}, "http", {}, False),
        ({}, "https", {}, True),
        ({}, "http", {"X-Forwarded-Proto": "https"}, True),
        ({"secure": True}, "http", {}, True),
        ({"secure": False}, "https", {}, False),
    ],
)
async def test_over_https_the_cookie_is_secure(
    make: Any, options: Any, scheme: str, headers: dict[str, str], secure: bool
) -> None:
    async with client(make(**options), base_url=f"{scheme}://localhost/", headers=headers) as web:
        cookie = (await web.get(f"/?token={TOKEN}")).headers["set-cookie"]
        assert ("; secure" in cookie.lower()) == secure


@pytest.mark.proves("tokens")
async def test_cookies_expire_and_are_renewed(make: Any, monkeypatch: Any) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(module, "_now", lambda: now)
    app = make()
    async with client(app, headers={}) as web, client(app, headers={}) as thief:
        first = (await web.get(f"/?token={TOKEN}")).headers["set-cookie"]
        assert f"max-age={12 * 3600}" in first.lower()
        again = await thief.get(f"/?token={TOKEN}")
        assert again.headers["set-cookie"].partition(";")[0] != first.partition(";")[0], "each sign-in has its own"
        assert "set-cookie" not in (await web.get("v1/status")).headers
        thief.cookies = httpx.Cookies(web.cookies)
        for _ in range(13):
            now += 3600
            renewed = await web.get("v1/status")
            assert (renewed.status_code, "set-cookie" in renewed.headers) == (200, True)
        assert (await thief.get("v1/status")).status_code == 401, "a cookie that was replaced expires"
        now += 12 * 3600
        assert (await web.get("v1/status")).status_code == 401
        await web.get(f"/?token={TOKEN}")
        days = 0.0
        while (await web.get("v1/status")).status_code == 200:
            now += 6 * 3600
            days += 0.25
        assert days == 7, "then the user signs in again"


async def test_a_stream_ends_when_its_cookie_must_be_renewed(make: Any) -> None:
    app = make(limits=Limits(heartbeat=0.05, reauthorize=0.05))
    async with client(app, headers={}) as web:
        await web.get(f"/?token={TOKEN}")
        cookie = "; ".join(f"{name}={value}" for name, value in web.cookies.items())
    async with listening(app) as port, Stream(port, at("c", "events"), Cookie=cookie, Authorization="") as stream:
        await stream.comment()
        with pytest.MonkeyPatch.context() as patch:
            later = time.time() + 3601
            patch.setattr(access.time, "time", lambda: later)
            assert await stream.event() is None


async def test_the_list_is_complete_until_its_cookie_is_checked(make: Any, store: Any) -> None:
    app = make()
    async with client(app, headers={}) as web:
        await web.get(f"/?token={TOKEN}")
        cookie = "; ".join(f"{name}={value}" for name, value in web.cookies.items())
    async with listening(app) as port, Stream(port, Cookie=cookie, Authorization="") as stream:
        assert await stream.event() == ("hello", {})
        with pytest.MonkeyPatch.context() as patch:
            later = time.time() + 3601
            patch.setattr(access.time, "time", lambda: later)
            await store.append("c", user("x"))
            event = await stream.event(seconds=5)
    assert (event[0], event[1]["conversation"]) == ("changed", "c")


@pytest.mark.proves("local-users")
async def test_a_sign_in_code_works_once_and_expires(store: Any, monkeypatch: Any) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(module, "_now", lambda: now)
    view = LiveView(store, authorize=allow_all)
    one, other = module.Invitation(), module.Invitation()
    for invitation, works in ((one, True), (one, False), (None, False), (other, False)):
        now += 60 * (invitation is other)
        app = application(view, token=TOKEN, invitation=invitation)
        async with client(app, headers={}) as web:
            answered = await web.get("/", params={"code": (invitation or one).code})
            assert (answered.status_code == 200, "set-cookie" in answered.headers) == (works, works)
            assert TOKEN not in answered.text
            assert one.code not in answered.text
            assert ((await web.get("v1/status")).status_code == 200) == works


@pytest.mark.proves("tokens")
async def test_the_token_is_not_logged(make: Any, caplog: Any) -> None:
    caplog.set_level("INFO", "uvicorn.access")
    async with listening(make(), access_log=True) as port, httpx.AsyncClient() as web:
        for token in (TOKEN, WRONG):
            await web.get(f"http://127.0.0.1:{port}/?token={token}")
    assert caplog.text.count("GET / ") == 2
    assert "token-of-the-tests" not in caplog.text


@pytest.mark.proves("sign-in")
async def test_unknown_host_names_are_rejected(make: Any) -> None:
    """DNS rebinding: a page of evil.example, whose name leads here, is of the same origin for the browser."""
    async with client(make(hosts=("My.Name.",))) as web:
        for host in (
            *("evil.example", "localhost.evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1"),
            *(
                "localhost@evil.example",
                "evil.example#localhost",
                "",
                "x" * 300,
                "localhost/?",
                "[::1].evil.test",
                "[::1]x",
            ),
        ):
            refused = await web.get("v1/status", headers={"Host": host})
            assert (refused.status_code, refused.json()["code"]) == (403, "wrong_host")
            refused = await web.get(f"/?token={TOKEN}", headers={"Host": host})
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        for host in ("localhost", "LOCALHOST:8642", "127.0.0.1:1", "[::1]:8642", "192.168.0.7", "my.name"):
            assert (await web.get("v1/status", headers={"Host": host})).status_code == 200
    async with listening(make()) as port:
        assert (await raw(port, "GET /v1/status HTTP/1.1\r\nHost: evil.example")).startswith(
            (b"HTTP/1.1 400", b"HTTP/1.1 403")
        )


@pytest.mark.proves("sign-in")
async def test_requests_from_other_origins_are_rejected(make: Any) -> None:
    origins = (
        "http://evil.example",
        "null",
        "",
        "http://[::1",
        "http://localhost:9999",
        "//localhost",
        "ftp://localhost",
        "http://localhost.evil.example",
    )
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    sites = [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, link]
    async with client(make()) as web:
        for headers in (*({"Origin": origin} for origin in origins), *sites):
            for path in ("v1/status", "v1/events", "static/index.html"):
                refused = await web.get(path, headers=headers)
                assert (refused.status_code, refused.json()["code"]) == (403, "wrong_origin")
                assert not [name for name in refused.headers if name.startswith("access-control")]
        assert (await web.get("/", headers=link)).status_code == 200, "a link opens only the page"
        assert (await web.get("/", headers={**link, "Sec-Fetch-Mode": "no-cors"})).status_code == 403
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert (await web.get("v1/status", headers=own)).status_code == 200


@pytest.mark.proves("browser-text")
@pytest.mark.parametrize("token", [TOKEN, WRONG])
async def test_headers_of_every_answer(make: Any, token: str) -> None:
    async with client(make(), headers={"Authorization": f"Bearer {token}"}) as web:
        for path in (*PATHS, "v1/conversations//messages"):
            if not path.endswith("events"):
                check_headers((await web.get(path)).headers)
            check_headers((await web.request("TRACE", path)).headers)
    async with listening(make()) as port:
        for path in ("v1/events", at("c", "events"), "v1/conversations//events"):
            async with Stream(port, path, Authorization=f"Bearer {token}") as stream:
                check_headers(stream.headers)
        assert (await raw(port, f"HEAD /{at('c', 'events')} HTTP/1.1")).startswith(b"HTTP/1.1 200"), "it ends"


def check_headers(headers: Any) -> None:
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
        "img-src": "'self' data:", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"].partition(",")[0] in ("no-store", "no-cache")
    assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_errors_do_not_name_servers(make: Any, store: Any, namespace: str, monkeypatch: Any, caplog: Any) -> None:
    url = f"redis://user:secret@127.0.0.1:{(port := free_port())}"
    async with (
        AsyncHistoryStore(url, namespace=namespace, retry=RetryPolicy(deadline=0.0)) as away,
        client(make(store=away, address=f"127.0.0.1:{port}")) as web,
    ):
        for path in ("v1/status", "v1/conversations", at("c", "messages"), at("c", "events")):
            failed = await web.get(path)
            assert (failed.status_code, failed.json()["code"]) == (503, "no_server")
            assert "secret" not in failed.text
            assert str(port) not in failed.text
            assert failed.headers["retry-after"] == "2"
            check_headers(failed.headers)

    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError(url)

    monkeypatch.setattr(store, "get_conversation", broken)
    async with client(make()) as web:
        failed = await web.get(at("c"))
        assert (failed.status_code, failed.json()["code"], "secret" in failed.text) == (500, "failed", False)
        check_headers(failed.headers)
    assert "the live view failed" in caplog.text


async def test_headers_if_a_file_of_the_page_is_missing(make: Any, monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setattr(routing, "STATIC", tmp_path)
    async with client(make()) as web:
        failed = await web.get("/")
        assert (failed.status_code, failed.json()["code"]) == (500, "failed")
        check_headers(failed.headers)


async def test_unknown_methods_are_rejected(make: Any) -> None:
    async with client(make(read_only=False)) as web:
        for method in ("POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"):
            for path in ("", "v1/status", "v1/events", "v1/search", "static/index.html"):
                refused = await web.request(method, path)
                assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed")
        allowed = (await web.put(at("c", "messages"))).headers["allow"]
        assert set(allowed.split(", ")) == {"GET", "HEAD", "POST"}


async def test_files_outside_the_static_folder_are_not_served(make: Any) -> None:
    async with listening(make()) as port:
        for path in ("../_http.py", "..%2f_http.py", "%2e%2e/_http.py", "/etc", ""):
            assert (await raw(port, f"GET /static/{path} HTTP/1.1")).startswith(b"HTTP/1.1 404"), path


async def test_invalid_tokens_are_rejected(store: Any) -> None:
    for token in ("", "short", "x" * 300, "with a blank in it!", "né" * 20):
        with pytest.raises(ConfigurationError):
            application(LiveView(store, authorize=allow_all), token=token)


@pytest.mark.proves("sign-in")
async def test_a_form_signs_in_with_the_token(web: Any) -> None:
    """A form signs in only from this origin and with the token, so a page elsewhere cannot sign anybody in."""
    asked = {"headers": {"Authorization": "", "Accept": "text/html"}}
    door = await web.get("/", **asked)
    assert (door.status_code, "<form" in door.text) == (401, True)
    assert "form-action 'self'" in door.headers["content-security-policy"]
    assert "script-src" not in door.headers["content-security-policy"]

    async def sent(**given: Any) -> Any:
        headers = {**asked["headers"], "Origin": "http://localhost", **given.pop("headers", {})}
        return await web.post("/", headers=headers, **given)

    done = await sent(data={"token": TOKEN})
    assert (done.status_code, done.headers["location"]) == (303, "./")
    assert {"HttpOnly", "SameSite=Strict"} <= set(done.headers["set-cookie"].split("; "))
    assert TOKEN not in done.headers["set-cookie"]
    web.cookies.clear()
    for status, given in (
        (401, {"data": {"token": "a-token-of-a-stranger"}}),
        (405, {"data": {"other": TOKEN}}),
        (405, {"json": {"token": TOKEN}}),
        (405, {"data": {"token": TOKEN, "more": "x" * 3000}}),
        (405, {"data": {"token": TOKEN, **{f"field {number}": "x" for number in range(20)}}}),
        (403, {"data": {"token": TOKEN}, "headers": {"Origin": "http://elsewhere.example"}}),
        (403, {"data": {"token": TOKEN}, "headers": {"Origin": "null"}}),
    ):
        refused = await sent(**given)
        assert (refused.status_code, refused.headers.get("set-cookie")) == (status, None), given
