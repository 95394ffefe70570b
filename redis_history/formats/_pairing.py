"""Order tool calls and results as the APIs of providers require: each result directly after its call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from redis_history.formats._losses import Losses, OnLoss
from redis_history.values import Message, Part, Role, ToolResultPart, ToolUsePart
from redis_history.values.pairing import is_result, pairing
from redis_history.values.pairs import pairs_of, unfit
from redis_history.values.reasoning_parts import is_blank, only_reasoning, without_parts

#: A message with some parts of another one, and the places of these parts there.
Piece = tuple[Message, Sequence[int]]


def paired(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[Message]:
    """Move each result directly after its call, and leave out calls without a result, results without a call, and the
    reasoning that belongs to them.

    APIs reject any other order. It occurs when several agents write to a conversation, when an agent dies between call
    and result, or when a result arrives after its call was removed. A message with calls and their results, such as a
    live reply, becomes several messages with its id, unless the provider ran the tools. `on_loss` is called for each
    part that is left out; without it a warning is logged.
    """
    messages = _fit(list(messages), on_loss)
    pairs = pairs_of(messages)
    out: list[list[Message]] = [[] for _ in messages]
    # By the index of the message with the calls: messages with results, the places of these, and of what else they say.
    moved: dict[int, list[tuple[Message, list[int], list[int]]]] = {}
    for index, message in enumerate(messages):
        rest: list[int] = []
        results: dict[int, list[int]] = {}
        for at, part in enumerate(message.parts):
            call = pairs.call_of.get((index, at))
            if call is None or call[0] == index or not is_result(part):
                rest.append(at)
            else:
                results.setdefault(call[0], []).append(at)
        stays = message.role == "assistant" and any(
            _is_plain(message.parts[at]) for places in results.values() for at in places
        )
        if len(results) == 1 and not stays and not any(pairing(message.parts[at]).opens for at in rest):
            ((target, places),) = results.items()  # the message moves as a whole, with its other parts
            moved.setdefault(target, []).append((message, places, rest))
            continue
        if rest or not message.parts:
            out[index].append(with_parts(message, rest))
        for target, places in results.items():
            moved.setdefault(target, []).append((message, places, []))
    for target, found in moved.items():
        # The provider ends its code after the calls of the code have been answered.
        found.sort(key=lambda one: pairing(one[0].parts[one[1][0]]).hosted)
        between = any(rest for _, _, rest in found[:-1])
        role: Role | None
        for message, places, rest in found:
            role = "tool" if message.role == "assistant" and _is_plain(message.parts[places[0]]) else None
            out[target].append(with_parts(message, places if between else places + rest, role))
        if between:
            out[target] += [with_parts(message, rest) for message, _, rest in found if rest]
    return [message for group in out for message in group]


def _fit(given: list[Message], on_loss: OnLoss | None) -> list[Message]:
    """The messages without parts that no request may contain. A message with results of its own calls is split."""
    pieces = [piece for message in given for piece in pieces_of(message, every=False)]
    messages = [message for message, _ in pieces]
    gone = unfit(messages, pairs_of(messages))
    if not gone and not any(map(only_reasoning, messages)):
        return messages
    out: list[Message] = []
    reasoning: tuple[Part, ...] = ()  # for the next message of the assistant
    with Losses("a request", on_loss) as losses:
        for index, (message, places) in enumerate(pieces):
            own = gone.get(index, ())
            for at in sorted(own):
                losses.add(message.id, places[at], _reason(message.parts[at]))
            parts = message.parts
            if own:
                parts = without_parts(message, own)
                parts = () if all(map(is_blank, parts)) else parts  # such as the line break before a call
            if parts and only_reasoning(message):
                reasoning += parts
                continue
            if reasoning and parts and message.role == "assistant":
                parts, reasoning = reasoning + parts, ()
            if parts or not own:
                out.append(message if parts is message.parts else replace(message, parts=parts))
    return out


def _reason(part: Part) -> str:
    """Why a part is left out of a request."""
    answers, opens, _ = pairing(part)
    if not (answers or opens):
        return "reasoning without the item that it belongs to"
    return "a tool result without its call" if not opens else "a tool call without a result"


def has_own_results(message: Message) -> bool:
    """Whether a message has calls and their results, which no API accepts. Results of tools that a provider ran itself
    do not count."""
    return any(_borders(message, every=False))


def pieces_of(message: Message, *, every: bool) -> list[Piece]:
    """Split a message so that results of its own calls are separate. `every`: also separate the results of tools that a
    provider ran itself."""
    borders = list(_borders(message, every=every)) if len(message.parts) > 1 else ()
    if not borders:
        return [whole(message)]
    ends = itertools.pairwise((0, *borders, len(message.parts)))
    roles = itertools.cycle((message.role, "tool"))
    return [
        (with_parts(message, range(*places), role), range(*places))
        for places, role in zip(ends, roles, strict=False)
        if places[0] < places[1]
    ]


def _borders(message: Message, *, every: bool) -> Iterator[int]:
    """Where results of calls in this message begin, and where they end."""
    if message.role == "system" or message.is_summary:
        return
    called: set[str] = set()
    among = False
    for at, part in enumerate(message.parts):
        own = isinstance(part, ToolResultPart) and part.tool_use_id in called and (every or _is_plain(part))
        if own != among:
            yield at
        among = own
        if type(part) is ToolUsePart:
            called.add(part.id)


def _is_plain(part: Part) -> bool:
    """Whether this is the result of a tool that the provider did not run itself."""
    return type(part) is ToolResultPart and not pairing(part).hosted


def whole(message: Message) -> Piece:
    """A message with all of its parts."""
    return message, range(len(message.parts))


def with_parts(message: Message, places: Sequence[int], role: Role | None = None) -> Message:
    """A message with these of its parts."""
    parts = tuple(message.parts[at] for at in places)
    if role is not None and role != message.role:
        return replace(message, parts=parts, role=role, provider_meta={})  # which belongs to the former role
    return message if parts == message.parts else replace(message, parts=parts)
