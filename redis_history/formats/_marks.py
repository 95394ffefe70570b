"""Calls that items of providers and frameworks open or answer, in the form that `redis_history.values.pairing` reads.

One function handles all formats, because frameworks keep blocks of any provider. An item of a type that is not listed
here opens its `call_id`, and an item whose type ends with `_output` or `_result` answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from redis_history.values import Part, ToolResultPart, ToolUsePart, UnknownPart
from redis_history.values.pairing import PAIR

Pair = dict[str, Any]

#: The pairs of Gemini, which are keys of a part, and their ids if the item lacks an id. Function names contain no "/".
_GEMINI = {
    "executable_code": ("opens", "/code"),
    "code_execution_result": ("answers", "/code"),
    "tool_call": ("opens", "/tool"),
    "tool_response": ("answers", "/tool"),
}
#: Items whose id is under another key than that of most items.
_OPENS = {"mcp_approval_request": "id", "function_approval_request": "id", "server_tool_call": "id", "tool_call": "id"}
_ANSWERS = {
    "mcp_approval_response": "approval_request_id",
    "function_approval_response": "id",
    "local_shell_call_output": "id",
}
#: The id of a tool search by the API itself, which comes without an id. It ends before the next search begins.
_SEARCH = "/tool_search"


def pair_of(block: Any) -> Pair:
    """The call that a block opens or answers. {} for most blocks."""
    if not isinstance(block, Mapping):
        return {}
    kind = block.get("type")
    if not isinstance(kind, str):
        return _keyed_pair_of(block)
    pair: Pair = {}
    if kind in _ANSWERS or kind.endswith(("_output", "_result")):
        given = _first(block, "call_id", "tool_use_id", "tool_call_id", *filter(None, (_ANSWERS.get(kind),)))
        given = given or (_SEARCH if kind == "tool_search_output" else None)
        pair["answers"] = given
    else:
        given = _first(block, "call_id", *filter(None, (_OPENS.get(kind), "id" if kind.endswith("tool_use") else None)))
        given = given or (_SEARCH if kind == "tool_search_call" else None)
        pair["opens"] = given
    if given is None:
        return {}
    if "_approval_" in kind:  # a framework approves a call by the id of the call
        pair = dict.fromkeys(pair, f"approval/{given}")
    if isinstance(caller := block.get("caller"), Mapping) and "opens" in pair:
        pair["within"] = _first(caller, "caller_id", "tool_id")
    pair["hosted"] = _is_hosted(kind, block) or None
    return {key: value for key, value in pair.items() if value is not None}


def _is_hosted(kind: str, block: Mapping[str, Any]) -> bool:
    """Whether the provider runs the tool of a call or result itself."""
    if kind in ("tool_search_call", "tool_search_output"):
        return block.get("execution") != "client"
    own = kind.endswith(("tool_use", "tool_result")) and kind not in ("tool_use", "tool_result")
    return own or kind in ("program", "program_output", "server_tool_call")


def _keyed_pair_of(block: Mapping[str, Any]) -> Pair:
    """The pair of a block without a type, whose only key says what it is."""
    for key, verb in (("toolUse", "opens"), ("toolResult", "answers")):
        if isinstance(value := block.get(key), Mapping) and (given := _first(value, "toolUseId")):
            return {verb: given, **({"hosted": True} if "type" in value else {})}  # which only tools of the server have
    for kind, (verb, without_id) in _GEMINI.items():
        first, *rest = kind.split("_")
        value = block.get(kind) or block.get(first + "".join(map(str.capitalize, rest)))
        if isinstance(value, Mapping):
            return {verb: _first(value, "id") or without_id, "hosted": True}
    return {}


def _first(block: Mapping[str, Any], *keys: str) -> str | None:
    """The value of the first of these keys that has a text."""
    return next((value for key in keys if isinstance(value := block.get(key), str) and value), None)


def pair_in(part: Part) -> Pair:
    """The pair that `marked` wrote into a part."""
    holder = part.data if isinstance(part, UnknownPart) else getattr(part, "provider_meta", None)
    return dict(holder.get(PAIR, {})) if holder else {}


def marked(part: Part, pair: Pair) -> Part:
    """A part with its pair. Tool uses and results have their id in a field of their own."""
    known = "opens" if type(part) is ToolUsePart else "answers" if type(part) is ToolResultPart else None
    pair = {key: value for key, value in pair.items() if key != known}
    if not pair:
        return part
    if isinstance(part, UnknownPart):
        return replace(part, data={**part.data, PAIR: pair})
    if isinstance(part, ToolUsePart | ToolResultPart):
        return replace(part, provider_meta={**(part.provider_meta or {}), PAIR: pair})
    return part
