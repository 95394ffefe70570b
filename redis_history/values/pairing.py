"""The calls that a part opens and answers. Pure.

`pairing` returns, for any part, the calls that it opens and answers. No other module decides this by kinds of parts: a
format marks the items of its provider when it reads them, under the key "pair" of the `data` of an opaque part or of
the `provider_meta` of a tool use or result:

- `opens`, `answers`: the id of the call that an opaque part makes, and the id of the call that it answers.
- `within`: the id of the call whose code makes this call, such as a program that calls functions. The part answers that
  call and opens it anew, for the next call of the code or for its result; so all of them stay or go together.
- `hosted`: the provider itself runs the tool, so only the provider can give the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from redis_history.values.message import Message
from redis_history.values.parts import Part, ToolResultPart, ToolUsePart, UnknownPart

#: The key under which a part names the calls it opens and answers.
PAIR: Final = "pair"


class Pairing(NamedTuple):
    """The ids of the calls that a part answers, and of those that it opens, its own one last. `hosted`: the provider
    itself runs the tool."""

    answers: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    hosted: bool = False

    @property
    def is_result(self) -> bool:
        """Whether the part answers a call without making a call."""
        return bool(self.answers) and not self.opens


_NO_PAIR = Pairing()


def pairing(part: Part) -> Pairing:
    """The calls that a part opens and answers."""
    kind = type(part)
    if kind is not ToolUsePart and kind is not ToolResultPart and kind is not UnknownPart:
        return _NO_PAIR
    said = _said(part)
    within, hosted = said.get("within"), said.get("hosted") is True
    answers = [one for one in (within, said.get("answers")) if type(one) is str]
    opens = [one for one in (within, said.get("opens")) if type(one) is str]
    if type(part) is ToolUsePart:
        opens.append(part.id)
    elif type(part) is ToolResultPart:
        answers.append(part.tool_use_id)
    return Pairing(tuple(answers), tuple(opens), hosted) if answers or opens else _NO_PAIR


def _said(part: Any) -> Mapping[str, Any]:
    """The note about pairs by the reader of a part."""
    holder = part.data if type(part) is UnknownPart else part.provider_meta
    said = holder.get(PAIR) if isinstance(holder, Mapping) else None
    return said if isinstance(said, Mapping) else {}


def in_pair(part: Part) -> bool:
    """Whether a part opens or answers a pair."""
    return pairing(part) is not _NO_PAIR


def is_result(part: Part) -> bool:
    """Whether a part answers a call without making a call."""
    kind = type(part)
    if kind is ToolResultPart and not is_marked(part):
        return True
    return (kind is UnknownPart or kind is ToolResultPart) and pairing(part).is_result


def is_marked(part: Any) -> bool:
    """Whether the reader of a tool use or result noted more about its pair than its id says."""
    return part.provider_meta is not None and PAIR in part.provider_meta


def only_results(message: Message) -> bool:
    """Whether a message consists only of results."""
    return bool(message.parts) and all(map(is_result, message.parts))
