"""docs/how-to/web.md and http.md have every path, parameter, event and error of the live view; and no others."""

import inspect
import re
from typing import get_args

from redis_history.web import Limits, _endpoints, _events, _http, _shape, access, application, routing
from redis_history.web.access import Action
from redis_history.web.routing import API
from tests.docs.pages import DOCS, code, prose, rows, sections

PAGES = [DOCS / "how-to" / name for name in ("web.md", "http.md")]
SECTIONS = sections(PAGES[0]) | sections(PAGES[1])


def _table(section: str) -> dict[str, list[str]]:
    return {str(code(row[0])): row[1:] for row in rows(SECTIONS[section]) if code(row[0])}


def test_every_path_with_its_rights_parameters_and_fields() -> None:
    found = {f"{method} {path[1:]}": row for path, by in API.items() for method, row in by.items()}
    described = _table("Requests")
    assert set(described) == set(found)
    for path, row in found.items():
        rights, parameters, _ = described[path]
        needed = [row.right]
        if row.right == "list" and "conversation" in row.parameters:
            needed.append("read")
        if row.as_fields:
            needed.append("append_as")
        needed += row.also
        assert [one for one in re.findall(r"`(\w+)`", rights) if one in get_args(Action)] == needed, path
        asked, _, body = parameters.partition("body")
        assert set(re.findall(r"`(\w+)", asked)) == set(row.parameters), path
        assert set(re.findall(r"`(\w+)", body)) == {*(row.fields or ()), *row.as_fields}, path


def test_every_action() -> None:
    described = {row[0].strip('`"') for row in rows(SECTIONS["In your application"])}
    assert described == set(get_args(Action))


def test_every_event() -> None:
    described = set(_table("Events"))
    assert described == set(_events.KINDS.values())


def test_every_error() -> None:
    codes: set[str] = set()
    for module in (_endpoints, _http, access, application, routing):
        source = inspect.getsource(module)
        codes |= set(re.findall(r'(?:Refused|problem)\(\s*\d{3}, "(\w+)"', source))
        codes |= set(re.findall(r'\d{3}: "(\w+)"', source))
    codes |= {"bad_input", *(code for _, _, code in _http._STATUS)}
    described = {name for row in rows(SECTIONS["Errors"]) if row[0][:3].isdigit()
                 for name in re.findall(r"`(\w+)`", row[1])}  # fmt: skip
    assert described == codes


def test_a_page_has_the_figures_of_the_code() -> None:
    limits = Limits()
    shown = {number.rstrip(",.") for number in re.findall(r"\d[\d,.]*", " ".join(map(prose, PAGES)))}
    figures = [limits.patience, limits.reauthorize, limits.heartbeat, _events._COUNT, _events._BYTES // 10**6]
    figures += [_shape.LONGEST]
    figures += [_http.MOST, _endpoints._FULL // 10**6, _http.MAX_BODY, _endpoints._EXAMINED]
    figures += [_endpoints._MOST_HITS, application._EXPIRES // 3600]
    figures += [_events._LARGEST // 10**6]
    assert {f"{figure:,.10g}" for figure in figures} - shown == set()
