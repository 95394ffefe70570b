"""docs/reference.md has every name, option, field, default and error; and nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import redis_history
import redis_history.embedded
from redis_history import errors
from redis_history.backends.redis.urls import SCHEMES
from redis_history.compaction.models import DEFAULT_PROMPT
from redis_history.events import ResetReason
from redis_history.model import Metadata, Modality, Role, Scope
from tests.docs.pages import DOCS, code, headings, rows, sections

REFERENCE = DOCS / "reference.md"
SECTIONS = {re.sub(r"`", "", heading): text for heading, text in sections(REFERENCE).items()}
STORES = (redis_history.HistoryStore, redis_history.AsyncHistoryStore)
SUBSCRIPTIONS = (redis_history.Subscription, redis_history.AsyncSubscription)


def _methods(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def _properties(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind) if isinstance(value, property) and name[0] != "_"}


HISTORIES = (redis_history.RedisHistory, redis_history.AsyncRedisHistory)
METHODS = [f"store.{name}" for name in sorted(_methods(STORES[0]))]
METHODS += [f"subscription.{name}" for name in sorted(_methods(SUBSCRIPTIONS[0]))]


def _target(method: str) -> Callable[..., Any]:
    owner, _, name = method.partition(".")
    return getattr(STORES[0] if owner == "store" else SUBSCRIPTIONS[0], name)


def _documented(section: str) -> dict[str, str]:
    """The names in the first columns of the tables of a section, and their defaults."""
    return {found: row[1] for row in rows(SECTIONS[section]) if (found := code(row[0])) and found.isidentifier()}


def _agree(section: str, expected: dict[str, Any]) -> None:
    """Names and defaults are the same; `...` stands for required, None for a default that only words can tell."""
    found = _documented(section)
    assert set(found) == set(expected), section
    for name, default in expected.items():
        wanted = "required" if default is ... else default
        assert wanted is None or found[name] == wanted, f"{section}, {name}"


def _options(target: Callable[..., Any]) -> dict[str, str | Any]:
    parameters = list(inspect.signature(target).parameters.values())
    return {
        one.name: ... if one.default is one.empty else f"`{one.default!r}`" for one in parameters if one.name != "self"
    }


def _fields(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return {one.name: f"`{one.default!r}`" for one in dataclasses.fields(kind)}
    if not issubclass(kind, msgspec.Struct):
        return dict.fromkeys(kind._fields, ...)
    found: dict[str, Any] = {}
    for one in msgspec.structs.fields(kind):
        if one.default is not msgspec.NODEFAULT:
            found[one.name] = f"`{one.default!r}`"
        elif one.default_factory is not msgspec.NODEFAULT:
            found[one.name] = "`{}`" if one.default_factory is dict else None
        else:
            found[one.name] = ...
    return found


def test_every_public_name_has_its_heading_and_nothing_else_has() -> None:
    properties = {f"store.{name}" for name in _properties(STORES[0])}
    wanted = {*redis_history.__all__, *METHODS, *properties}
    assert {code(heading) for heading in headings(REFERENCE)} - {None} == wanted


#: Pairs of the synchronous and the asynchronous class.
PAIRS = {
    "stores": STORES,
    "subscriptions": SUBSCRIPTIONS,
    "histories": HISTORIES,
    "compressors": (redis_history.Compressor, redis_history.AsyncCompressor),
    "captures": (redis_history.Capture, redis_history.AsyncCapture),
    "turns": (redis_history.Turn, redis_history.AsyncTurn),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_both_kinds_are_the_same(kind: str) -> None:
    """The same methods with the same options, and the same properties."""
    sync, async_ = PAIRS[kind]
    assert _methods(sync) - {"close"} == _methods(async_) - {"aclose"}
    assert _properties(sync) == _properties(async_)
    for method in ("__init__", *_methods(sync) - {"close"}):
        assert _options(getattr(sync, method)) == _options(getattr(async_, method)), method


@pytest.mark.parametrize("method", METHODS)
def test_the_options_of(method: str) -> None:
    _agree(method, _options(_target(method)))


@pytest.mark.parametrize("name", ["openai_summarizer", "anthropic_summarizer"])
def test_the_options_of_a_summariser(name: str) -> None:
    options = _options(getattr(redis_history, name))
    assert options["prompt"] == f"`{DEFAULT_PROMPT!r}`"
    _agree(name, {**options, "prompt": "`DEFAULT_PROMPT`"})


def test_the_methods_of_compressors() -> None:
    for name in _methods(redis_history.Compressor):
        assert f"| `{name}()` |" in SECTIONS["Compressor"], name


@pytest.mark.parametrize("name", ["HistoryStore", "History", "RedisHistory", "Compressor"])
def test_the_options_of_a_class(name: str) -> None:
    _agree(name, _options(getattr(redis_history, name).__init__))


@pytest.mark.parametrize(
    ("section", "kind", "without"),
    [
        ("Methods of a history", redis_history.History, set()),
        ("Methods of a history with a store", HISTORIES[0], _methods(redis_history.History)),
    ],
)
def test_the_methods_of_a_history(section: str, kind: type, without: set[str]) -> None:
    found = {call.partition("(")[0]: call for row in rows(SECTIONS[section]) if "(" in (call := code(row[0]) or "")}
    assert set(found) == _methods(kind) - without
    for method, call in found.items():
        assert call == f"{method}({', '.join(_options(getattr(kind, method)))})"
    properties = _properties(kind) - (_properties(redis_history.History) if without else set())
    named = {code(row[0]) for row in rows(SECTIONS[section])}
    assert properties <= named


def test_the_events_of_a_history() -> None:
    found = {code(row[0]) for row in rows(SECTIONS["Methods of a history"])}
    assert {f'"{event}"' for event in HISTORIES[0]._EVENTS} <= found


def test_the_hooks_of_a_plugin() -> None:
    found = {code(row[0]) for row in rows(SECTIONS["Plugin"])}
    plugin = redis_history.Plugin
    assert found == {f"{name}({', '.join(_options(getattr(plugin, name)))})" for name in _methods(plugin)}


@pytest.mark.parametrize(
    "name",
    [
        *("user", "assistant", "system", "tool", "text", "tool_use", "tool_result"),
        *("assemble_prompt", "assemble_messages", "capture"),
        *("tool_result_masking", "tiktoken_counter"),
        *("compression", "extractive_summarizer"),
    ],
)
def test_the_options_of_a_helper(name: str) -> None:
    _agree(name, _options(getattr(redis_history, name)))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in redis_history.__all__
        if isinstance(kind := getattr(redis_history, name), type)
        and (issubclass(kind, msgspec.Struct | tuple) or dataclasses.is_dataclass(kind))
        and name not in ("Message", "UnknownPart")
    ],
)
def test_the_fields_of(name: str) -> None:
    _agree(name, _fields(getattr(redis_history, name)))


def test_the_fields_and_properties_of_a_message() -> None:
    expected = _fields(redis_history.Message)
    found = _documented("Message")
    assert set(found) == set(expected) | _properties(redis_history.Message)
    for field, default in expected.items():
        assert default is None or found[field] == ("required" if default is ... else default), field


def test_the_fields_and_properties_of_an_unknown_part() -> None:
    _agree("UnknownPart", _fields(redis_history.UnknownPart))
    assert {f"`{name}`" for name in _properties(redis_history.UnknownPart)} == {"`type`"}
    assert "property `type`" in SECTIONS["UnknownPart"]


def test_the_attributes_of_subscriptions() -> None:
    for attribute in {"conversation_id", *_properties(SUBSCRIPTIONS[0])}:
        assert f"`{attribute}`" in SECTIONS["Subscription"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(("Reset", get_args(ResetReason)), ("Message", get_args(Role)), ("Message", get_args(Scope))),
        *((name, get_args(getattr(redis_history, name))) for name in ("LeftOutReason", "AddressedReason")),
        *(("AttachmentPart", get_args(Modality)), ("Message", Metadata.__annotations__)),
        ("Participant", get_args(get_type_hints(redis_history.Participant)["kind"])),
        ("CompressionProgress", get_args(get_type_hints(redis_history.CompressionProgress)["kind"])),
        ("Event", [kind.__name__ for kind in get_args(redis_history.Event)]),
        ("HistoryStore", [f"{scheme}://" for scheme in SCHEMES]),
    ],
)
def test_the_values_of(name: str, values: Any) -> None:
    for value in values:
        assert re.search(rf'`"?{re.escape(value)}', SECTIONS[name]), value


def test_the_methods_and_attributes_of_prompts_and_captures() -> None:
    for kind in (redis_history.AssembledPrompt, redis_history.PromptReport, redis_history.Turn):
        for name in _methods(kind) | _properties(kind):
            assert re.search(rf"`{name}\b", SECTIONS[kind.__name__]), name
    for name in _methods(redis_history.Capture) | _properties(redis_history.Capture):
        assert name == "forget" or f"`{name}" in SECTIONS["Capture"], name


def test_every_error_is_there_below_the_right_one() -> None:
    found = {code(row[0]): row[1] for row in rows(SECTIONS["Errors"])}
    assert set(found) == set(errors.__all__)
    for name, parents in found.items():
        kind = getattr(errors, str(name))
        assert parents == ", ".join(f"`{parent.__name__}`" for parent in kind.__bases__), name


def test_the_attributes_of_errors() -> None:
    meanings = {code(row[0]): row[2] for row in rows(SECTIONS["Errors"])}
    for name, meaning in meanings.items():
        own = vars(getattr(errors, str(name))).get("__init__")
        for one in inspect.signature(own).parameters.values() if own else ():
            if one.kind is one.KEYWORD_ONLY:
                assert f"`{one.name}`" in meaning, f"{name}.{one.name}"


@pytest.mark.parametrize(
    ("section", "modules"),
    [
        ("Formats", ["formats"]),
        ("Importers", ["importers"]),
        ("Live view", ["web"]),
        ("Compaction", ["compaction"]),
        ("The private server, by itself", ["embedded"]),
        (
            "Frameworks",
            [f"integrations.{name}" for name in ("langchain", "llama_index", "openai_agents", "pydantic_ai")],
        ),
    ],
)
def test_the_names_of_the_parts_around(section: str, modules: list[str]) -> None:
    found = {code(row[0]): " ".join(row[1:]) for row in rows(SECTIONS[section])}
    targets = {}
    for module in modules:
        part = importlib.import_module(f"redis_history.{module}")
        targets |= {name: getattr(part, name) for name in part.__all__}
    assert set(found) == set(targets)
    for name, target in targets.items():
        if isinstance(target, type) and issubclass(target, msgspec.Struct):
            assert all(re.search(rf"`{one.name}\b", found[name]) for one in msgspec.structs.fields(target)), name
        elif dataclasses.is_dataclass(target):
            assert all(re.search(rf"`{one.name}\b", found[name]) for one in dataclasses.fields(target)), name
        elif inspect.isroutine(target) and "the same" not in found[name]:
            for one in inspect.signature(target).parameters.values():
                shown = (
                    f'`{one.name}="{one.default}"`' if isinstance(one.default, str) else f"`{one.name}={one.default!r}`"
                )
                shown = f"`{one.name}`" if one.default is one.empty else shown
                assert one.kind is not one.KEYWORD_ONLY or shown in found[name], f"{name}, {one.name}"


def test_the_private_server() -> None:
    text = SECTIONS["The private server, by itself"]
    kind = redis_history.embedded.EmbeddedServer
    named = set(re.findall(r"`(\w+)", text[text.index("An `EmbeddedServer` has") :]))
    assert _methods(kind) | _properties(kind) <= named
    for option, default in _options(kind.__init__).items():
        assert f"`{option}={default.strip('`')}`".replace("'", '"') in text
