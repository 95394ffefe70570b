"""Import a Slack export: a folder or archive with `users.json` and a folder of daily files per channel.

A channel is one conversation, in the order of its timestamps. Replies in a thread have the scope `thread` and
`metadata["thread_id"]`. Slack's markup is made readable (`<@U1>` becomes `@ann`); the original is kept in
`provider_meta["slack"]`. Messages of a channel never get the role `system`, whatever their subtype.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.importers._bundle import Bundle
from redis_history.importers.transcript import Transcript, Turn, build, need, rest, scalar, size_of
from redis_history.model import AttachmentPart, Message, Modality, Part, Participant, Scope, TextPart

#: The files that list conversations, and the `channel_type` of these conversations.
_LISTS = {"channels.json": "channel", "groups.json": "group", "mpims.json": "mpim", "dms.json": "dm"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")
_STAMP = re.compile(r"(\d{1,11})\.(\d{1,6})")
_MARK = re.compile(r"<([@#!])?([^<>|]*)(?:\|([^<>]*))?>")
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video", "text": "text"}


def is_slack(bundle: Bundle) -> bool:
    """Whether the files of the bundle are a Slack export."""
    return any(_DAY.fullmatch(name) for name in bundle.names) and any(
        name in bundle.names for name in ("users.json", *_LISTS)
    )


def slack(bundle: Bundle) -> Iterator[Transcript]:
    """Import the channels that have messages, in the order of their names."""
    users = _users(bundle)
    channels = _channels(bundle)
    folders: dict[str, list[str]] = {}
    for path in bundle.paths:
        folder, _, name = path.rpartition("/")
        if folder and _DAY.fullmatch(name):
            folders.setdefault(folder, []).append(path)
    for folder, days in sorted(folders.items()):
        name = folder.rpartition("/")[2]
        kind, record = channels.get(name, ("channel", {"name": name}))
        channel = _Channel(name, scalar(record.get("id")) or name, kind)
        yield from _transcript(bundle, days, users, channel, record)


class _Channel(NamedTuple):
    name: str
    id: str
    kind: str

    def metadata(self) -> dict[str, Any]:
        return {"channel_type": self.kind, "channel_name": self.name, "channel_id": self.id}


def _transcript(
    bundle: Bundle, days: list[str], users: Mapping[str, str], channel: _Channel, record: Any
) -> Iterator[Transcript]:
    turns: dict[
        tuple[str, str, str], tuple[int, Turn]
    ] = {}  # a reply that was also sent to the channel can occur twice
    size = 0
    for source in bundle.sources(days):
        for line, value in source.records():
            size += source.size
            if size > source.limits.max_conversation_bytes:
                subject = f"the channel {channel.name[:80]!r}"
                source.problem(line, source.limits.refusal("max_conversation_bytes", subject))
                return
            try:
                at, turn = _turn(value, users, channel)
            except InvalidInputError as error:
                source.problem(line, str(error))
            else:
                turns.setdefault((str(turn.time), repr(value.get("user")), repr(value.get("text"))), (at, turn))
    yield build(
        [turn for _, turn in sorted(turns.values(), key=itemgetter(0))],
        format="slack",
        key=f"{bundle.name}:{channel.id}",
        on_bad_line=bundle.problem,
        title=f"#{channel.name}" if channel.kind in ("channel", "group") else channel.name,
        metadata={**channel.metadata(), "channel": record},
    )


def _turn(record: Any, users: Mapping[str, str], channel: _Channel) -> tuple[int, Turn]:
    """The time of a message in microseconds, and the message."""
    stamp = need(record, "ts", str)
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise InvalidMessageError(f"'ts' must be a timestamp, not {stamp[:40]!r}")
    microseconds = int(match[1]) * 1_000_000 + int(match[2].ljust(6, "0"))
    raw = record.get("text") or ""
    if not isinstance(raw, str):
        raise InvalidMessageError("'text' must be a string")
    text, mentions = _readable(raw, users)
    thread = record.get("thread_ts")
    scope: Scope = "dm" if channel.kind in ("dm", "mpim") else "channel"
    metadata = {**channel.metadata(), "platform_message_id": stamp}
    if isinstance(thread, str):
        metadata["thread_id"] = thread
        scope = scope if thread == stamp else "thread"
    if mentions:
        metadata["mentions"] = mentions
    if subtype := scalar(record.get("subtype")):
        metadata["kind"] = subtype
    parts: list[Part] = [TextPart(text=text)] if text else []
    files = record.get("files")
    parts += [part for file in files if (part := _file(file))] if isinstance(files, list) else []
    message = Message(
        role="assistant" if _is_bot(record) else "user",
        parts=tuple(parts),
        participant=_participant(record, users),
        scope=scope,
        metadata=metadata,
        provider_meta={"slack": rest(record, "ts") if text != raw else rest(record, "ts", "text")},
    )
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return microseconds, Turn(message, id=f"{channel.id}-{stamp}", time=stamp, at=at)


def _is_bot(record: Mapping[str, Any]) -> bool:
    return record.get("subtype") == "bot_message" or (scalar(record.get("bot_id")) is not None)


def _participant(record: Mapping[str, Any], users: Mapping[str, str]) -> Participant | None:
    id_ = scalar(record.get("user")) or scalar(record.get("bot_id")) or scalar(record.get("username"))
    if id_ is None:
        return None
    profile = record.get("user_profile") or record.get("bot_profile")
    name = users.get(id_) or scalar(record.get("username")) or _name(profile)
    return Participant(kind="agent" if _is_bot(record) else "user", id=id_, display_name=name)


def _name(profile: Any) -> str | None:
    keys = ("display_name", "real_name", "name")
    names = (scalar(profile.get(key)) for key in keys) if isinstance(profile, Mapping) else ()
    return next(filter(None, names), None)


def _readable(text: str, users: Mapping[str, str]) -> tuple[str, list[str]]:
    mentions: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        mark, target, label = match[1], match[2], match[3]
        if mark == "@":
            if target not in mentions:
                mentions.append(target)
            return f"@{users.get(target) or label or target}"
        if mark == "#":
            return f"#{label or target}"
        if mark == "!":
            return label or f"@{target.partition('^')[0]}"
        shown = target.removeprefix("mailto:")
        return shown if not label or label in (target, shown) else f"{label} ({target})"

    return html.unescape(_MARK.sub(replacement, text)), mentions


def _file(file: Any) -> AttachmentPart | None:
    if not isinstance(file, Mapping) or not any(scalar(file.get(key)) for key in ("id", "name", "url_private")):
        return None
    mime = scalar(file.get("mimetype"))
    return AttachmentPart(
        id=scalar(file.get("id")),
        name=scalar(file.get("name")) or scalar(file.get("title")),
        size=size_of(file.get("size")),
        modality=_MODALITIES.get((mime or "").partition("/")[0], "file"),
        mime_type=mime,
        reference=scalar(file.get("url_private")) or scalar(file.get("permalink")),
    )


def _users(bundle: Bundle) -> dict[str, str]:
    found: dict[str, str] = {}
    for user in _listed(bundle, "users.json"):
        name = _name(user.get("profile")) or _name(user)
        if (id_ := scalar(user.get("id"))) and name:
            found[id_] = name
    return found


def _channels(bundle: Bundle) -> dict[str, tuple[str, Any]]:
    """The kind and the record of each conversation, by the name of its folder. Direct messages have no name: their
    folder is named by their id."""
    return {
        folder: (kind, channel)
        for file, kind in _LISTS.items()
        for channel in _listed(bundle, file)
        if (folder := scalar(channel.get("name")) or scalar(channel.get("id"))) is not None
    }


def _listed(bundle: Bundle, name: str) -> Iterator[Mapping[str, Any]]:
    paths = [path for path in bundle.paths if path.rpartition("/")[2] == name]
    for source in bundle.sources(paths[:1]):
        for line, record in source.records():
            if isinstance(record, Mapping):
                yield record
            else:
                source.problem(line, "the record must be an object")
