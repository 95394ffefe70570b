"""docs/how-to/web.md has every path, parameter, event, error and option of the live view; and no others."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import click

from redis_history.cli.serve import serve_command as command
from redis_history.web import _endpoints, _events, _http, _hub, _shape, _view, access, application, routing
from redis_history.web.access import Action
from redis_history.web.routing import API
from tests.docs.pages import DOCS, code, prose, rows, sections

PAGE = DOCS / "how-to" / "web.md"
SECTIONS = sections(PAGE)
TEXT = re.sub(r"\s+", " ", prose(PAGE))


def _table(section: str) -> dict[str, list[str]]:
    return {str(code(row[0])): row[1:] for row in rows(SECTIONS[section]) if code(row[0])}


def test_every_path_with_its_rights_parameters_and_fields() -> None:
    found = {f"{method} {path[1:]}": row for path, by in API.items() for method, row in by.items()}
    described = _table("The HTTP interface")
    assert set(described) == set(found)
    for path, row in found.items():
        rights, parameters, _ = described[path]
        needed = [row.right]
        if row.right == "list" and "conversation" in row.parameters:
            needed.append("read")
        if row.as_fields:
            needed.append("append_as")
        assert [one for one in re.findall(r"`(\w+)`", rights) if one in get_args(Action)] == needed, path
        asked, _, body = parameters.partition("body")
        assert set(re.findall(r"`(\w+)", asked)) == set(row.parameters), path
        assert set(re.findall(r"`(\w+)", body)) == {*(row.fields or ()), *row.as_fields}, path


def test_every_action() -> None:
    described = {row[0].strip('`"') for row in rows(SECTIONS["In an application of yours"])}
    assert described == set(get_args(Action))


def test_every_event() -> None:
    described = set(_table("Events"))
    assert described == set(_events._KINDS.values())


def test_every_error() -> None:
    codes: set[str] = set()
    for module in (_endpoints, _http, _view, access, application, routing):
        source = inspect.getsource(module)
        codes |= set(re.findall(r'(?:Refused|refusal)\(\s*\d{3}, "(\w+)"', source))
        codes |= set(re.findall(r'\d{3}: "(\w+)"', source))
    codes |= {code for _, _, code in _http._STATUS}
    described = {name for row in rows(SECTIONS["The HTTP interface"]) if row[0][:3].isdigit()
                 for name in re.findall(r"`(\w+)`", row[1])}  # fmt: skip
    assert described == codes


def test_every_option_of_serve() -> None:
    described = _table("Look at conversations")
    options = {one.opts[0]: one for one in command.params if isinstance(one, click.Option) and one.expose_value}
    assert set(described) == set(options)
    for name, option in options.items():
        default = option.default
        switch = option.is_flag and not option.secondary_opts
        shown = "off" if switch else f"`{default}`" if isinstance(default, str | int) else ""
        assert described[name][0] == shown, name
        if isinstance(option.envvar, str):
            assert f"`{option.envvar}`" in described[name][1]


def test_figures() -> None:
    limits = _view.Limits()
    for text in (
        f"nothing for {limits.patience:.0f} s",
        f"again every {limits.reauthorize:.0f} s",
        f"every {limits.heartbeat:.0f} s",
        f"the last {_events._COUNT} events, or {_events._BYTES // 10**6} MB",
        f"more than {_shape.LONGEST:,} characters",
        f"At most {_http.MOST:,} messages or conversations",
        f"about {_endpoints._FULL // 10**6} MB",
        f"more than {_http.MAX_BODY:,} bytes",
        f"at most {_endpoints._LIST_END:,} conversations",
        f"looks at {_endpoints._EXAMINED} conversations",
        f"among the best {_endpoints._MOST_HITS}",
        f"ends after {application._ENDS // 3600} hours",
        f"After {application._SIGN_IN_AGAIN // 86_400} days",
        f"works once, for {application._INVITED} s",
        f"(over {_events._LARGEST // 10**6} MB",
        f"after {int(re.findall(rb'retry: ([0-9]+)', _http._OPENING)[0]) // 1000} s",
    ):
        assert text in TEXT, text
    assert _hub._PACE == 0.25, "four times a second"
