"""The endpoints of the HTTP interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import Response

from redis_history._version import __version__
from redis_history.agents.compaction.summaries import summary_text
from redis_history.errors import (
    ConflictError,
    ConversationExistsError,
    ConversationNotFoundError,
    MessageNotFoundError,
    RevisionConflictError,
)
from redis_history.formats.json_form import dumps, message_of
from redis_history.store._async.asking import check_agent
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import (
    Append,
    Asking,
    ListConversations,
    Preview,
    ReadConversation,
    ReadPage,
    ReadTogether,
    ReadTurns,
)
from redis_history.store.operations.base import MAX_BY
from redis_history.store.operations.listing import FIRST_MESSAGES, Place
from redis_history.store.operations.usage import check_budget
from redis_history.store.search.hits import SearchHits
from redis_history.store.writes import Precondition
from redis_history.values import Conversation, Message, Position, TextPart, Usage
from redis_history.values.ids import owner_of
from redis_history.values.usage import UsageGroup
from redis_history.web._http import MOST, ApiRequest, Refused, answer, bad_input
from redis_history.web._images import image_in
from redis_history.web._shape import (
    approval_shape,
    conversation_shape,
    hit_shape,
    message_preview,
    message_shape,
    run_shape,
    turn_shape,
)
from redis_history.web.access import Action

if TYPE_CHECKING:
    from redis_history.web.routing import LiveView

_MOST_HITS: Final = 100
#: Hits in the conversations of an owner that one response examines, if `authorize` excludes some.
_MOST_EXAMINED: Final = 1000
#: How many conversations one response examines, if `authorize` may exclude some.
_EXAMINED: Final = 500
#: Conversations whose titles and newest messages are read together.
_PREVIEWED: Final = 500
#: Actions that name no conversation, and those of a view that is read-only.
_WITHOUT_CONVERSATION: Final = frozenset(("list", "erase", "usage"))
_READING: Final = frozenset(("list", "read", "usage"))
#: Messages that a question may have behind it to be asked again, and attempts to edit a message while others change
#: the conversation.
_MOST_REPLACED: Final = 1000
_EDITS: Final = 20
#: Messages read together, and bytes after which a response is full and says that there are more.
_PAGE: Final = 200
_FULL: Final = 8_000_000
#: Pages that a response reads at most beyond those that its limit needs.
_FURTHER_PAGES: Final = 3


async def status(view: LiveView, request: ApiRequest) -> Response:
    found = await view.store.capabilities
    return answer(
        {
            "version": __version__,
            "namespace": view.store.namespace,
            "address": view.address,
            "read_only": view.read_only,
            # A page needs no more. The other capabilities describe the server to its operator.
            "capabilities": {name: getattr(found, name) for name in ("backend", "mode", "search", "doorbell")},
            "summary_prefix": summary_text("").removesuffix("]"),
            "sign_in": view.sign_in,
            "prices": view.prices,
        }
    )


async def rights(view: LiveView, request: ApiRequest) -> Response:
    """The client's rights to the conversation, or those without a conversation."""
    name = request.conversation_id
    actions = [one for one in get_args(Action) if (one in _WITHOUT_CONVERSATION) == (name is None)]
    if view.read_only:
        actions = [one for one in actions if one in _READING]
    allowed = await asyncio.gather(*(view.allows(request.http, name, one) for one in actions))
    return answer({"rights": [one for one, may in zip(actions, allowed, strict=True) if may]})


async def conversations(view: LiveView, request: ApiRequest) -> Response:
    limit, cursor = request.number("limit", 50, 1, MOST), request.text("cursor")
    user_id, agent = request.text("user_id"), request.text("agent_name")
    owner, origin = None if user_id is None else owner_of(user_id), request.text("forked_from")
    rights = view.read_rights(request.http)
    examined = limit + 1 if rights.is_open else _EXAMINED
    after = None if cursor is None else Place.parse(cursor)
    following = ListConversations(owner, agent, origin, limit=examined + 1, after=after)
    found = await view.store.backend.execute(following)
    # One more than the limit, to detect a next page for this user without revealing the number of other conversations.
    lives = await rights.readable([one.conversation_id for one in found[:examined]], limit + 1)
    names = list(lives)[:limit]
    previews = await _previews(view.store, names)
    kept = await rights.unchanged(lives)
    shapes = []
    for one in previews:
        if one.conversation.conversation_id in kept:
            shape = conversation_shape(one.conversation) | {"label": one.title}
            shapes.append(shape | {"last": message_preview(one.last_message)} if request.flag("last") else shape)
    last = next((one for one in found if names and one.conversation_id == names[-1]), None)
    more = len(lives) > limit or len(found) > examined
    total = None  # unknown with both filters, which would take a read of all records
    if view.open_to_all and origin is None and None in (owner, agent):
        total = await view.store.count_conversations(user_id=owner, agent_name=agent)
    cursor = str(Place.of(last)) if last is not None and more else None
    return answer({"conversations": shapes, "next": cursor, "total": total})


async def _previews(store: AsyncHistoryStore, conversation_ids: Sequence[str]) -> list[Preview]:
    """How a list shows these conversations, without those that are gone."""
    previews = []
    for at in range(0, len(conversation_ids), _PREVIEWED):
        reads: list[Any] = []
        for one in conversation_ids[at : at + _PREVIEWED]:
            first = ReadPage(one, FIRST_MESSAGES, newest=False, contents="none")
            reads += ReadConversation(one), first, replace(first, limit=1, newest=True)
        records = await store.backend.execute(ReadTogether(tuple(reads)))
        for record, first, newest in zip(records[::3], records[1::3], records[2::3], strict=True):
            if record is not None:
                previews.append(Preview.of(record, first.messages, newest.messages))
    return previews


async def conversation(view: LiveView, request: ApiRequest) -> Response:
    name = request.path["conversation"]
    cursor = (await view.store.snapshot(name, limit=1, contents=False)).cursor
    found = await view.store.get_conversation(name)
    if found is None:
        raise unknown_conversation(name)
    first: list[Message] = []
    if not found.title:
        async for message in view.store.iter(name, batch=FIRST_MESSAGES, contents=False):
            first.append(message)
            if len(first) == FIRST_MESSAGES:
                break
    shape = conversation_shape(found) | {"label": Preview.of(found, first, []).title, "cursor": str(cursor)}
    return request.answer_with_etag(shape, cursor)


async def search(view: LiveView, request: ApiRequest) -> Response:
    name, query, owner = request.conversation_id, request.text("q") or "", request.text("user_id")
    limit = request.number("limit", 20, 1, _MOST_HITS)
    options: dict[str, Any] = {"since": request.text("since"), "before": request.text("before"), "token_cap": None}
    for option, parameter in (("roles", "role"), ("participant_ids", "participant"), ("tool_names", "tool")):
        if (value := request.text(parameter)) is not None:
            options[option] = [value]
    if owner is not None:
        if name is not None:
            raise bad_input("user_id and conversation exclude each other: name one of them")
        hits = await _of_owner(view, request, query, limit, **options, user_id=owner_of(owner))
    elif name is not None:
        hits = await view.store.search(name, query, limit=limit, highlight=True, **options)
    elif view.open_to_all:
        hits = await view.store.search_all(query, limit=limit, highlight=True, **options)
    else:
        # Within what the user may read, so that messages of others neither hide hits nor show that they exist.
        rights = view.read_rights(request.http)
        newest = await view.store.list_conversations(limit=_EXAMINED + 1)
        lives = await rights.readable(one.conversation_id for one in newest[:_EXAMINED])
        hits, older = SearchHits([], 0), None
        if len(newest) > _EXAMINED:
            older = f"only conversations among the {_EXAMINED} that changed last were searched; pass user_id"
        if lives:
            hits = await view.store.search_all(query, limit=limit, highlight=True, conversation_ids=[*lives], **options)
            kept = await rights.unchanged({hit.conversation_id: lives[hit.conversation_id] for hit in hits})
            left = [hit for hit in hits if hit.conversation_id in kept]
            hits = SearchHits(left, hits.total - len(hits) + len(left), hits.incomplete)
        hits.incomplete = hits.incomplete or older
    found = list(map(hit_shape, hits[:limit]))
    return answer({"hits": found, "total": hits.total, "incomplete": hits.incomplete})


async def _of_owner(view: LiveView, request: ApiRequest, query: str, limit: int, **options: Any) -> SearchHits:
    """The best hits in all conversations of an owner that the user may read. The others leave no trace, neither in
    the total nor in the note about missing hits."""
    rights = view.read_rights(request.http)
    kept: dict[str, bool] = {}
    found: list[Any] = []
    for offset in range(0, _MOST_EXAMINED, _MOST_HITS):
        shown = len(found) < limit  # the others only count
        hits = await view.store.search_all(query, limit=_MOST_HITS, offset=offset, highlight=shown, **options)
        if rights.is_open:
            return hits
        names = {hit.conversation_id for hit in hits} - kept.keys()
        lives = await rights.unchanged(await rights.readable(names))
        kept |= {name: name in lives for name in names}
        found += [hit for hit in hits if kept[hit.conversation_id]]
        if len(hits) < _MOST_HITS:  # these were all
            return SearchHits(found[:limit], len(found), hits.incomplete if all(kept.values()) else None)
    if len(found) > limit:
        return SearchHits(found[:limit], limit, "there are more matches")
    return SearchHits(found, len(found), "not all matches were examined" if found else None)


async def approvals(view: LiveView, request: ApiRequest) -> Response:
    """The tool calls that wait for approval, in conversations that the user may read."""
    limit, user_id, agent = request.number("limit", 50, 1, MOST), request.text("user_id"), request.text("agent_name")
    owner, rights = None if user_id is None else owner_of(user_id), view.read_rights(request.http)
    examined = limit if rights.is_open else _EXAMINED
    found = await view.store.list_approvals(user_id=owner, agent_name=agent, limit=examined)
    names = dict.fromkeys(one.conversation_id for one in found)
    lives = await rights.unchanged(await rights.readable(names))
    shown = [one for one in found if one.conversation_id in lives][:limit]
    names = {} if view.read_only else dict.fromkeys(one.conversation_id for one in shown)
    allowed = await asyncio.gather(*(view.allows(request.http, name, "decide") for name in names))
    deciding = {name for name, may in zip(names, allowed, strict=True) if may}
    return answer(
        {"approvals": [approval_shape(one) | {"may_decide": one.conversation_id in deciding} for one in shown]}
    )


async def decide(view: LiveView, request: ApiRequest) -> Response:
    """Decide on a call that waits for approval. The first decision stands."""
    approved: Any = request.body.get("approved")  # `decide` rejects all but true and false
    reason = request.body.get("reason")
    ids = request.path["conversation"], request.path["call"]
    done = await view.store.decide(*ids, approved, reason=reason, by=await _by(view, request))
    return answer(approval_shape(done) | {"duplicate": done.duplicate})


async def messages(view: LiveView, request: ApiRequest) -> Response:
    name, store = request.path["conversation"], view.store
    limit = request.number("limit", 200, 1, MOST)
    before, since = request.position("before"), request.position("since")
    archived, first = request.flag("include_archived"), request.flag("first")
    if since is not None and first:
        batch = min(limit + 1, _PAGE)
        oldest = store.iter(name, batch=batch, since=since, before=before, include_archived=archived, contents="texts")
        shapes, more = await _read_forward(oldest, limit)
        return answer({"messages": shapes, "more": more, "cursor": None})
    cursor = None

    async def read(count: int, before: Position | None) -> list[Message]:
        nonlocal cursor
        if before is None and since is None:
            snapshot = await store.snapshot(name, limit=count, contents="texts")
            cursor = str(snapshot.cursor)
            if not archived:
                return snapshot.messages
        options: dict[str, Any] = {"include_archived": archived, "contents": "texts"}
        return await store.get(name, limit=count, before=before, since=since, **options)

    shapes, more, _ = await _read_back(read, limit, before)
    page = {"messages": shapes, "more": more, "cursor": cursor}
    grows = any(shape["status"] == "streaming" for shape in shapes)  # without another revision
    return answer(page) if cursor is None or grows else request.answer_with_etag(page, cursor)


async def message(view: LiveView, request: ApiRequest) -> Response:
    name, message_id = request.path["conversation"], request.path["message"]
    found = await view.store.get_message(name, message_id)
    if found is None:
        raise _unknown_message(message_id)
    return answer(message_shape(found, whole=True))


async def image(view: LiveView, request: ApiRequest) -> Response:
    """An image that stands in a message, by its number among the `images` of the message's parts. The address of an
    image elsewhere leads nowhere: the server fetches nothing for a client."""
    found = await view.store.get_message(request.path["conversation"], request.path["message"])
    number = request.path["image"]
    shown = image_in(found, int(number)) if found is not None and number.isdecimal() and len(number) < 5 else None
    if shown is None:
        raise Refused(404, "not_found", "there is no such image in this message")
    content = await asyncio.to_thread(shown.content)
    if content is None:
        raise Refused(404, "not_found", "this image is damaged: it is not base64")
    # A page that scrolls asks again and again. The meaning of a number changes only with the message.
    headers = {"cache-control": "private, max-age=300", "content-security-policy": "default-src 'none'; sandbox"}
    return Response(content, headers=headers, media_type=shown.mime_type)


async def originals(view: LiveView, request: ApiRequest) -> Response:
    """The originals of a summary: the archived messages up to its position, including earlier summaries."""
    name, message_id = request.path["conversation"], request.path["message"]
    limit, before = request.number("limit", MOST, 1, MOST), request.position("before")
    summary = await view.store.get_message(name, message_id)
    if summary is None or summary.position is None or not summary.is_summary:
        raise MessageNotFoundError(f"there is no summary {message_id[:64]!r} in this conversation")
    live_ids = {summary.id}

    async def read(count: int, before: Position | None) -> list[Message]:
        page = await view.store.get(name, limit=count, before=before, include_archived=True, contents="texts")
        # The summary did not replace live messages before it: system messages, and messages that were appended
        # later with an older time.
        first = page[0].position if page else None
        since = None if first is None else first._replace(sequence=first.sequence - 1)  # includes the first message
        live = await view.store.get(name, since=since, before=before, contents=False) if page else []
        live_ids.update(one.id for one in live)
        return page

    end = summary.position._replace(sequence=summary.position.sequence + 1)
    shapes, more, place = await _read_back(read, limit, end if before is None else min(before, end), live_ids)
    return answer({"messages": shapes, "more": more, "before": str(place) if more else None})


async def append(view: LiveView, request: ApiRequest) -> Response:
    """Append a message, with the role and participant of the body (needs the right `append_as`), or else with role
    `user` and the signed-in participant, who owns a conversation that this creates. With `ask`, the message asks for an
    answer of the agent `agent_name`. A repeated request with the same id stores the message once."""
    name, user = request.path["conversation"], request.user
    named = ("text", "ask", "agent_name")
    fields = {key: value for key, value in request.body.items() if value is not None and key not in named}
    asks, agent_name = request.body.get("ask"), _agent_of(request)
    if not isinstance(asks, bool | None):
        raise bad_input("ask must be true or false")
    text = request.body.get("text")
    if not isinstance(text, str):
        raise bad_input("text is missing: it must be a string")
    message = message_of({"role": "user", **fields, "parts": [text]})
    right: Action = "append_as" if request.body.keys() & {"role", "participant"} else "append"
    if right == "append":
        message = replace(message, participant=user)
    op = Append.of(name, message)  # raises for invalid messages, before the conversation exists
    record = await view.store.get_conversation(name)
    owner = None if user is None else user.id
    if asks:
        check_agent(agent_name)
        await view.store.execute(check_budget(owner if record is None else record.user_id))
        op = replace(op, asking=Asking(agent_name, 0))
    done = None
    with suppress(ConversationExistsError):  # another request, perhaps of another user, was faster
        if record is None and owner is None:
            [done] = await view.store._write(replace(op, precondition=Precondition(must_not_exist=True)))
        elif record is None:
            await view.store.create_conversation(Conversation(name, user_id=owner))
    if done is None or done.duplicate:
        await view.confirm(request.http, name, right)
        [done] = await view.store._write(replace(op, precondition=Precondition(must_exist=True)))
    return answer(
        {"revision": done.revision, "message": message_shape(done.message), "duplicate": done.duplicate},
        200 if done.duplicate else 201,
    )


async def update_conversation(view: LiveView, request: ApiRequest) -> Response:
    title, by = request.body.get("title", UNSET), await _by(view, request)
    name = request.path["conversation"]
    return answer(conversation_shape(await view.store.update_conversation(name, title=title, by=by)))


async def _by(view: LiveView, request: ApiRequest) -> str | None:
    """The name of the signed-in user, for changes."""
    user = await view.signed_in(request.http)
    return None if user is None else user.id[:MAX_BY]


async def fork(view: LiveView, request: ApiRequest) -> Response:
    """Copy the conversation, up to the message `through`. A client chooses no id, so that it takes none of others."""
    through = request.body.get("through")
    if through is not None and not isinstance(through, str):
        raise bad_input("through must be the id of a message")
    return answer(conversation_shape(await view.store.fork(request.path["conversation"], through=through)), 201)


async def pin(view: LiveView, request: ApiRequest) -> Response:
    pinned = request.body.get("pinned")
    if not isinstance(pinned, bool):
        raise bad_input("pinned must be true or false")
    ids = request.path["conversation"], request.path["message"]
    found = await view.store.pin(*ids, pinned=pinned, by=await _by(view, request))
    return answer(message_shape(found))


async def erase(view: LiveView, request: ApiRequest) -> Response:
    """Remove all conversations of an owner. If the connection ends before, the same request continues."""
    return answer({"conversations": await view.store.erase_user(owner_of(request.path["user"]))})


async def usage(view: LiveView, request: ApiRequest) -> Response:
    user_id, by = request.text("user_id"), request.text("by") or "day"
    owner = None if user_id is None else owner_of(user_id)
    days = {name: _day(request, name) for name in ("since", "until")}
    if by not in get_args(UsageGroup):
        raise bad_input(f"by must be day or agent, not {by[:20]!r}")
    chosen: dict[str, Any] = {"user_id": owner, "agent_name": request.text("agent_name"), **days}
    groups = await view.store.usage_by(cast(UsageGroup, by), **chosen)
    shape = {
        "usage": sum(groups.values(), Usage()),
        "groups": [{"name": name, "usage": one} for name, one in groups.items()],
    }
    return answer(shape if owner is None else shape | {"budget": await view.store.get_budget(owner)})


def _day(request: ApiRequest, name: str) -> date | None:
    text = request.text(name)
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise bad_input(f"{name} must be a day such as 2026-01-31, not {text[:20]!r}") from error


async def delete_conversation(view: LiveView, request: ApiRequest) -> Response:
    name = request.path["conversation"]
    if not await view.store.delete_conversation(name, by=await _by(view, request)):
        raise unknown_conversation(name)
    return Response(status_code=204)


async def run(view: LiveView, request: ApiRequest) -> Response:
    """The newest run of a conversation, with its agent and the waiting agents."""
    found = await view.store.get_run(request.path["conversation"])
    return answer({"run": None if found is None else run_shape(found)})


async def stop(view: LiveView, request: ApiRequest) -> Response:
    """Ask the run to stop: the active run, or the run that the body names."""
    run_id, reason = request.body.get("run_id"), request.body.get("reason")
    stopped = await view.store.stop_run(request.path["conversation"], run_id=run_id, reason=reason)
    return answer({"stopping": stopped})


async def turns(view: LiveView, request: ApiRequest) -> Response:
    """The turns of a conversation: what it is owed."""
    found = await view.store.backend.execute(ReadTurns(request.path["conversation"]))
    return answer({"turns": list(map(turn_shape, found))})


async def list_turns(view: LiveView, request: ApiRequest) -> Response:
    """The turns of conversations, the oldest question first."""
    limit, user_id = request.number("limit", 50, 1, MOST), request.text("user_id")
    status: Any = request.text("status")
    owner, agent = None if user_id is None else owner_of(user_id), request.text("agent_name")
    rights = view.read_rights(request.http)
    most = limit if rights.is_open else _EXAMINED
    found = await view.store.list_turns(status=status, agent_name=agent, user_id=owner, limit=most)
    lives = await rights.readable(dict.fromkeys(turn.conversation_id for turn in found), limit)
    if not rights.is_open:  # what was read before its right was asked may be of another life
        known = await asyncio.gather(*(view.store.backend.execute(ReadTurns(name)) for name in lives))
        wanted = {(turn.conversation_id, turn.agent_name): turn.status for turn in found}
        now = {(turn.conversation_id, turn.agent_name): turn for each in known for turn in each}
        found = [now[key] for key, before in wanted.items() if key in now and now[key].status == before]
    kept = await rights.unchanged(lives)
    shown = [turn_shape(turn) for turn in found if turn.conversation_id in kept]
    return answer({"turns": shown[:limit]})


async def retry_turn(view: LiveView, request: ApiRequest) -> Response:
    """Have the turns of a conversation answered now: those of the agent in the body, or of all. Without a turn, the
    newest message of a user asks again."""
    options = {"agent_name": _agent_of(request)} if "agent_name" in request.body else {}
    return answer({"changed": await view.store.retry_turn(request.path["conversation"], **options)})


async def drop_turn(view: LiveView, request: ApiRequest) -> Response:
    """End the turns of a conversation without an answer."""
    options = {"agent_name": _agent_of(request)} if "agent_name" in request.body else {}
    return answer({"changed": await view.store.drop_turn(request.path["conversation"], **options)})


def _agent_of(request: ApiRequest) -> str | None:
    agent_name = request.body.get("agent_name")
    if not isinstance(agent_name, str | None):
        raise bad_input("agent_name must be a text or null")
    return agent_name


async def delete_message(view: LiveView, request: ApiRequest) -> Response:
    message_id, by = request.path["message"], await _by(view, request)
    if not await view.store.delete_messages(request.path["conversation"], [message_id], by=by):
        raise _unknown_message(message_id)
    return Response(status_code=204)


async def edit(view: LiveView, request: ApiRequest) -> Response:
    """Replace the text of a message. Its other parts stay, and so do changes that others make at the same time."""
    name, message_id, by = request.path["conversation"], request.path["message"], await _by(view, request)
    text = request.body.get("text")
    if not isinstance(text, str) or not text.strip():
        raise bad_input("text must be a string that is not blank")
    for attempt in range(_EDITS):
        cursor = (await view.store.snapshot(name, limit=1, contents=False)).cursor
        if request.life not in (None, cursor.epoch):
            raise unknown_conversation(name)
        found = await view.store.get_message(name, message_id)
        if found is None:
            raise _unknown_message(message_id)
        places = [at for at, part in enumerate(found.parts) if isinstance(part, TextPart)]
        if len(places) != 1 or found.status == "streaming" or found.is_summary:
            raise ConflictError(
                "only a message with one text can be edited, which is no summary and is not being written"
            )
        parts = [TextPart(text) if at == places[0] else part for at, part in enumerate(found.parts)]
        changed = replace(found, parts=tuple(parts))
        try:
            done = await view.store.update_message(name, changed, expected_revision=cursor.revision, by=by)
        except RevisionConflictError:
            if attempt == _EDITS - 1:
                raise
        else:
            break
    return answer(message_shape(done.message))


async def ask_again(view: LiveView, request: ApiRequest) -> Response:
    """Have the message of a user answered again: what follows it is deleted."""
    name, message_id, by = request.path["conversation"], request.path["message"], await _by(view, request)
    options = {"agent_name": _agent_of(request)} if "agent_name" in request.body else {}
    run = await view.store.get_run(name)
    if run is not None and run.is_active:
        raise ConflictError("an agent is at work in this conversation: stop it first")
    asked = await view.store.get_message(name, message_id)
    if asked is None or asked.position is None:
        raise _unknown_message(message_id)
    if asked.role != "user" or asked.is_summary:
        raise bad_input("only the message of a user can be asked again")
    # One read of all from the question on. Archived messages are not among them, so nothing is deleted behind one.
    since = asked.position._replace(sequence=asked.position.sequence - 1)
    snapshot = await view.store.snapshot(name, limit=1, contents=False)
    if request.life not in (None, snapshot.cursor.epoch):
        raise unknown_conversation(name)
    page = [one async for one in _first(view.store.iter(name, since=since, contents=False), _MOST_REPLACED + 2)]
    following = [one.id for one in page if one.position is not None and one.position > asked.position]
    if all(one.id != message_id for one in page):
        raise ConflictError("this message was archived: restore what its summary stands for first")
    if len(following) > _MOST_REPLACED:
        raise ConflictError(f"more than {_MOST_REPLACED:,} messages follow this one: branch from it instead")
    if following:
        revision = snapshot.cursor.revision  # a message that has come since is not lost
        await view.store.delete_messages(name, following, expected_revision=revision, by=by)
    return answer({"changed": await view.store.retry_turn(name, **options)})


async def _first(messages: AsyncIterator[Message], count: int) -> AsyncIterator[Message]:
    async for one in messages:
        yield one
        count -= 1
        if not count:
            return


async def expand(view: LiveView, request: ApiRequest) -> Response:
    done = await view.store.expand(request.path["conversation"], request.path["message"])
    return answer({"revision": done.revision, "count": done.count})


async def _read_forward(messages: AsyncIterator[Message], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first `limit` messages, or as many as fit in a response; and whether there are more."""
    shapes: list[dict[str, Any]] = []
    size = 0
    async for one in messages:
        if len(shapes) == limit or size >= _FULL:
            return shapes, True
        shapes.append(message_shape(one))
        size += len(dumps(shapes[-1]))
    return shapes, False


async def _read_back(
    read: Callable[[int, Position | None], Awaitable[list[Message]]],
    limit: int,
    before: Position | None,
    left_out: set[str] | None = None,
) -> tuple[list[dict[str, Any]], bool, Position | None]:
    """The newest `limit` messages before a position, or as many as fit in a response, ascending, whether there are
    more; and the position before which those are.

    `read(count, before)` returns a page. `left_out`: ids to skip, which `read` may add. With it, pages have `_PAGE`
    messages and their number is limited, so that many skipped messages do not delay the response.

    An earlier summary has the position of the last message that it replaced. A response contains all or none of the
    messages of one position, because the next request continues before that position.
    """
    shapes: list[dict[str, Any]] = []
    size, more = 0, True
    for _ in range(limit // _PAGE + _FURTHER_PAGES):
        if not more or len(shapes) >= limit or size >= _FULL:
            break
        count = _PAGE if left_out else min(limit - len(shapes), _PAGE)
        page = await read(count + 1, before)
        more = len(page) > count
        if more:
            page = [one for one in page if one.position != page[0].position] or page
        for one in reversed(page):
            if one.position != before and (len(shapes) >= limit or size >= _FULL):
                more = True
                break
            before = one.position
            if not left_out or one.id not in left_out:
                shapes.append(message_shape(one))
                size += len(dumps(shapes[-1]))
    return shapes[::-1], more, before


def unknown_conversation(conversation_id: str) -> ConversationNotFoundError:
    return ConversationNotFoundError(f"there is no conversation {conversation_id[:80]!r}")


def _unknown_message(message_id: str) -> MessageNotFoundError:
    return MessageNotFoundError(f"there is no message {message_id[:64]!r} in this conversation")
