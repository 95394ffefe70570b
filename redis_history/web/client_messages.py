"""Messages that clients may send: all content that the front end of a visitor can store, for both protocols.

A client may send messages of role user (texts, files and data), results of tools that run in the browser, and responses
to requests for approval. The server sets ids, roles, authors, times and metadata of messages. A front end also sends
its copy of older messages, of which only their ids are read.

This module does not read the store. `stored_chat` checks whether a call or a request for approval is open.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import orjson
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from redis_history import values as model
from redis_history.formats import from_vercel_ai
from redis_history.store.operations.approvals import MAX_REASON
from redis_history.values._caps import MAX_DEPTH, MAX_ITEMS
from redis_history.values.ids import check_message_id
from redis_history.web._http import Refused, bad_input

T = TypeVar("T")

#: Messages of a request, and those at its end that a client of AG-UI may add.
_MOST: Final = 10_000
_MOST_ADDED: Final = 1000
#: Characters of an error, which may quote what was sent.
_SHOWN: Final = 300
#: A string, or a character between values. Commas count values, because each but the first of a container follows one.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},]', re.DOTALL)

#: The scheme of a URL as browsers see it, which ignore some characters. A URL without a scheme is a path.
_SCHEME: Final = re.compile(r"[^/?#:]*:")
_UNSEEN: Final = dict.fromkeys(range(0x21))
#: Schemes for files of visitors. With other schemes, a page might run the file, or a server open its own files.
_SCHEMES: Final = ("http:", "https:", "data:")
#: A media type, which may become a header.
MediaType = Annotated[str, Meta(max_length=255, pattern=r"\A[ -~]*\Z")]
_BYTES: Final = "application/octet-stream"


class Result(NamedTuple):
    """The result of a call in the browser. `id` is the id of the message to store, the same for each copy of a
    request. It is derived here, so that clients cannot choose ids."""

    id: str
    part: model.ToolResultPart


class Asked(Struct):
    """A request for an answer.

    `messages`: the messages of the user. `results`: the results of tools in the browser. `responses`: the responses to
    requests for approval, by the ids of the requests. `replaces`: the id of the message after which everything is
    removed; `messages`, if any, replace its content unless `keep` is set. `fork`: the id of a new conversation for the
    answer, a fork up to that message; the present conversation stays unchanged. `run_id`: the id of the run in the
    protocol. `message_id`: the id of the client's message that the answer continues, with these `calls`. `is_named`:
    whether the client names the message to answer again. `refusal`: the error if a message would have to be stored but
    cannot. `copy`: the id of a message that is not read, because it is stored.
    """

    conversation_id: str
    messages: Sequence[model.Message] = ()
    results: Sequence[Result] = ()
    replaces: str | None = None
    fork: str | None = None
    run_id: str | None = None
    message_id: str | None = None
    calls: frozenset[str] = frozenset()
    responses: Mapping[str, dict[str, Any]] = {}
    keep: bool = False
    is_named: bool = True
    refusal: Refused | None = None
    copy: str | None = None


# Reading without building unused values


def decoded(data: Any, kind: type[T], what: str = "the body of the request is wrong") -> T:
    """A value of this type in JSON; whatever the type does not name is skipped. Raises Refused."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_input(f"{what}: {str(error)[:_SHOWN]}") from error
    except RecursionError as error:
        raise bad_input(f"{what}: it is nested too deep") from error


def listed(messages: Raw, kind: type[T], what: str) -> list[tuple[T, Raw]]:
    """The messages of a request, each with its head. Raises Refused."""
    heads = decoded(messages, list[kind], what)  # type: ignore[valid-type]
    if not 1 <= len(heads) <= _MOST:
        raise bad_input(
            f"messages must have 1 to {_MOST:,} messages, not {len(heads):,}; send only the last one, which is enough"
        )
    return list(zip(heads, decoded(messages, list[Raw], what), strict=True))


def check_sizes(messages: Iterable[Raw]) -> None:
    """Raises Refused if messages have more values or levels than one may have. This is counted before any of them is
    built: each byte of JSON may become an object of a hundred bytes."""
    values = 0
    for raw in messages:
        data = bytes(raw)
        opened = data.count(b"{") + data.count(b"[")
        if values + opened + data.count(b",") < MAX_ITEMS and opened < MAX_DEPTH:
            values += opened + data.count(b",") + 1
            continue
        depth = 0
        for token in _TOKEN.finditer(data):
            byte = data[token.start()]
            if byte in b"]}":
                depth -= 1
            elif byte in b"[{,":
                values += 1
                depth += byte != b","[0]
                if depth > MAX_DEPTH:
                    raise Refused(413, "too_large", f"a message is nested deeper than {MAX_DEPTH} levels")
                if values > MAX_ITEMS:
                    raise Refused(413, "too_large", f"the new messages have more than {MAX_ITEMS:,} values")


def _result_id(*names: str) -> str:
    """The id of the stored message of a result, which these names of the client identify."""
    digest = blake2b(orjson.dumps(names, option=orjson.OPT_PASSTHROUGH_SUBCLASS), digest_size=16)
    return f"result-{digest.hexdigest()}"


def _checked_id(message_id: str) -> str:
    return check_message_id(message_id, "the id of a message")


def _check_url(url: str) -> None:
    """Raises Refused for the URL of a file that is neither on the web, nor in the URL itself, nor a path."""
    scheme = _SCHEME.match(url.translate(_UNSEEN))
    if scheme is not None and scheme[0].lower() not in _SCHEMES:
        raise bad_input(f"the URL of a file must begin with https:, http: or data:, not with {scheme[0][:60]!r}")


# AI SDK


class UiHead(Struct, gc=False):
    """The id and role of a UI message."""

    role: Literal["user", "assistant", "system"]
    id: str


class _UiText(Struct, forbid_unknown_fields=True):
    type: str
    text: str
    state: Literal["streaming", "done"] | UnsetType = UNSET


class _UiFile(Struct, forbid_unknown_fields=True, rename="camel"):
    type: str
    media_type: MediaType
    url: str
    filename: str | None = None


class _UiData(Struct, forbid_unknown_fields=True):
    type: str
    data: Any
    id: str | UnsetType = UNSET


class _UiUserMessage(Struct, forbid_unknown_fields=True):
    """A UI message of role user. `metadata` is the visitor's, for the front end: nothing here acts on it."""

    id: str
    role: Literal["user"]
    parts: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    metadata: Any = UNSET


class _UiAnswers(Struct):
    """A UI message of role assistant, of which only results and responses are read."""

    id: str
    parts: list[dict[str, Any]]


class _UiCall(Struct, rename="camel"):
    tool_call_id: str
    state: str | None = None
    output: Any = None
    error_text: str = ""
    approval: Any = None


class _Response(Struct, omit_defaults=True):
    """The response of a user to a request for approval of a call."""

    id: str
    approved: bool
    reason: Annotated[str, Meta(max_length=MAX_REASON)] | None = None


_UI_PARTS: Final[dict[str, type[Struct]]] = {"text": _UiText, "file": _UiFile}


def ui_user_message(raw: Raw) -> model.Message:
    """The message of the user in a UI message. Raises Refused, InvalidInputError."""
    check_sizes([raw])
    given = decoded(raw, _UiUserMessage, "a message of the user is wrong")
    for number, part in enumerate(given.parts):
        kind = part.get("type")
        known = _UiData if str(kind).startswith("data-") else _UI_PARTS.get(str(kind))
        if known is None:
            raise bad_input(
                f"parts[{number}] of a message of the user has the type {str(kind)[:60]!r}; a user may send parts of "
                "the types text, file and data-NAME"
            )
        read = _converted(part, known, f"parts[{number}] of a message of the user is wrong")
        if isinstance(read, _UiFile):
            _check_url(read.url)
            part["mediaType"] = read.media_type or _BYTES  # browsers know no type of some files
    named = {"id": _checked_id(given.id), "role": "user"}
    rest = {} if given.metadata is UNSET else {"metadata": given.metadata}
    [message] = from_vercel_ai([{**named, **rest, "parts": given.parts}])
    return message


class UiAnswers(NamedTuple):
    """The user's content in a UI message of the assistant: results of calls in the browser, and responses to requests
    for approval. `calls`: the ids of all its calls."""

    message_id: str
    results: list[Result]
    responses: dict[str, dict[str, Any]]
    calls: frozenset[str]


def ui_answers(raw: Raw) -> UiAnswers:
    """Raises Refused."""
    check_sizes([raw])
    what = "the last message is wrong"
    given = decoded(raw, _UiAnswers, what)
    results: list[Result] = []
    responses: dict[str, dict[str, Any]] = {}
    seen: Counter[str] = Counter()
    for part in given.parts:
        kind = str(part.get("type"))
        if kind != "dynamic-tool" and not kind.startswith("tool-"):
            continue
        call = _converted(part, _UiCall, what)
        seen[call.tool_call_id] += 1  # models use the id of a call again
        if call.state == "approval-responded":
            response = _converted(call.approval, _Response, what)
            responses[response.id] = msgspec.to_builtins(response)
        elif call.state in ("output-available", "output-error"):
            names = given.id, call.tool_call_id, str(seen[call.tool_call_id])
            results.append(Result(_result_id(*names), _ui_result(call)))
    return UiAnswers(_checked_id(given.id), results, responses, frozenset(seen))


def _ui_result(call: _UiCall) -> model.ToolResultPart:
    """The result in a part, as the format stores it."""
    block = {"type": "dynamic-tool", "toolName": "", "toolCallId": call.tool_call_id, "state": call.state}
    block |= {"input": None, "output": call.output, "errorText": call.error_text}
    *_, results = from_vercel_ai([{"id": "result", "role": "assistant", "parts": [block]}])
    return results.tool_results[0]


def _converted(given: Any, kind: type[T], what: str) -> T:
    """A value of this type. Raises Refused."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise bad_input(f"{what}: {str(error)[:_SHOWN]}") from error


# AG-UI


class AgHead(Struct, gc=False):
    """The role of an AG-UI message, which determines its type."""

    role: Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]


class _AgData(Struct, tag_field="type", tag="data", rename="camel"):
    value: str
    mime_type: MediaType | None = None

    @property
    def reference(self) -> str:
        return f"data:{self.mime_type or _BYTES};base64,{self.value}"


class _AgUrl(Struct, tag_field="type", tag="url", rename="camel"):
    value: str
    mime_type: MediaType | None = None

    @property
    def reference(self) -> str:
        _check_url(self.value)
        return self.value


class _AgText(Struct, tag_field="type", tag="text"):
    text: str


class _AgImage(Struct, tag_field="type", tag="image"):
    source: _AgData | _AgUrl


class _AgAudio(_AgImage, tag_field="type", tag="audio"):
    pass


class _AgVideo(_AgImage, tag_field="type", tag="video"):
    pass


class _AgDocument(_AgImage, tag_field="type", tag="document"):
    pass


class _AgUserMessage(Struct):
    id: str
    content: str | list[_AgText | _AgImage | _AgAudio | _AgVideo | _AgDocument]


class _AgToolMessage(Struct, rename="camel"):
    id: str
    tool_call_id: str
    content: str | list[dict[str, Any]]
    error: str | None = None


class _Id(Struct):
    id: str


class _AgDecision(Struct):
    approved: bool
    reason: Annotated[str, Meta(max_length=MAX_REASON)] | None = None


class _AgResume(Struct, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: _AgDecision | bool | None = None


def ag_responses(resume: Raw) -> dict[str, dict[str, Any]]:
    """The responses to requests for approval in the answers to interrupts. Raises Refused."""
    check_sizes([resume])
    responses = {}
    for one in decoded(resume, list[_AgResume], "resume is wrong"):
        payload = one.payload
        if one.status == "resolved" and payload is None:
            raise bad_input(
                f"resume must say whether {one.interrupt_id[:64]!r} is approved: "
                '"payload": {"approved": true}, maybe with a "reason"'
            )
        response = payload if isinstance(payload, _AgDecision) else _AgDecision(payload is True)
        if one.status == "cancelled":
            response = _AgDecision(False, response.reason)
        reason = {} if response.reason is None else {"reason": response.reason}
        responses[one.interrupt_id] = {"id": one.interrupt_id, "approved": response.approved, **reason}
    return responses


def ag_added(found: Sequence[tuple[AgHead, Raw]]) -> tuple[list[model.Message], list[Result]]:
    """The messages at the end of an input that its client has added: those of the user, and results of tools. Raises
    Refused, InvalidInputError."""
    start = next((at for at in range(len(found), 0, -1) if found[at - 1][0].role not in ("user", "tool")), 0)
    added = found[start:]
    if len(added) > _MOST_ADDED:
        raise Refused(413, "too_large", f"at most {_MOST_ADDED:,} messages can be added, not {len(added):,}")
    check_sizes(raw for _, raw in added)
    users, results = [], []
    for head, raw in added:
        if head.role == "user":
            message = decoded(raw, _AgUserMessage, "a message of the user is wrong")
            users.append(model.user(*_ag_content(message.content), id=_checked_id(message.id)))
        else:
            given = decoded(raw, _AgToolMessage, "a message of a tool is wrong")
            content = given.content if isinstance(given.content, str) else orjson.dumps(given.content).decode()
            part = model.tool_result(given.tool_call_id, given.error or content, is_error=given.error is not None)
            results.append(Result(_result_id(given.id, given.tool_call_id), part))
    return users, results


def ag_last_user(found: Sequence[tuple[AgHead, Raw]]) -> str | None:
    """The id of the last message of the user."""
    raw = next((raw for head, raw in reversed(found) if head.role == "user"), None)
    return None if raw is None else decoded(raw, _Id, "a message of the user is wrong").id


def _ag_content(content: Any) -> Iterator[model.Part]:
    for item in [_AgText(content)] if isinstance(content, str) else content:
        if isinstance(item, _AgText):
            yield model.TextPart(text=item.text)
        else:
            source = item.source
            yield model.AttachmentPart(reference=source.reference, mime_type=source.mime_type or _BYTES)
