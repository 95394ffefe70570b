"""The common part of all formats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, get_args

from msgspec.structs import replace

from redis_history import values as model
from redis_history.errors import InvalidInputError
from redis_history.formats import _notes
from redis_history.formats._adapting import adapted
from redis_history.formats._content import accepted_data_url, file_id, split_data_url, text_or_none
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._pairing import Piece, pieces_of, whole
from redis_history.formats._sdk_objects import Places, without
from redis_history.formats._usage import unwrapped
from redis_history.values._validation import check_choice
from redis_history.values.quoting import file_hint


class Format:
    """Converts the messages of one provider. A subclass converts single blocks and single messages."""

    #: The key of this provider's notes in `provider_meta`.
    form: ClassVar[str]
    #: Our role for each role of the provider.
    roles: ClassVar[Mapping[str, model.Role]]
    #: Whether a result is always a separate message.
    results_apart: ClassVar[bool] = False
    #: Keys of a request (if the API rejects others), also inside a message, by their places: see `without`. And keys of
    #: a reply that are not content.
    request: ClassVar[Collection[str]] = ()
    inside: ClassVar[Places] = {}
    metadata: ClassVar[Collection[str]] = ()
    #: Keys by their places that only SDK objects have, which only the original shape restores; and those that only
    #: replies have, which a request leaves out.
    sdk_keys: ClassVar[Places] = {}
    reply_keys: ClassVar[Places] = {}
    #: Keys that the provider's types do not accept as null, and keys that the original decides in every shape, by the
    #: type of the part or the role of the message: see `rebuild`.
    not_null: ClassVar[Mapping[type | str, Collection[str]]] = {}
    free: ClassVar[Mapping[type | str, Collection[str]]] = {}

    def known(self, block: Any) -> model.Part | None:
        """The part for a block; None for an opaque part."""
        raise NotImplementedError

    # The block for a part, without its note; and what was lost.

    def text(self, part: model.TextPart, shape: _notes.Shape) -> _notes.Rendered:
        return {"type": "text", "text": part.text}, None

    def reasoning(self, part: model.ReasoningPart, shape: _notes.Shape) -> _notes.Rendered:
        return None, "reasoning of another provider"

    def call(self, part: model.ToolUsePart, shape: _notes.Shape) -> _notes.Rendered:
        raise NotImplementedError

    def result(self, part: model.ToolResultPart, shape: _notes.Shape) -> _notes.Rendered:
        raise NotImplementedError

    def file(self, part: model.AttachmentPart, shape: _notes.Shape) -> _notes.Rendered:
        raise NotImplementedError

    # Whole messages

    def read_message(self, raw: Mapping[str, Any], index: int) -> model.Message:
        raise NotImplementedError

    def write_message(self, message: model.Message, shape: _notes.Shape, losses: Losses) -> list[_notes.Json]:
        raise NotImplementedError

    def from_(self, items: Iterable[Any], *, role: bool = True) -> list[model.Message]:
        """The messages of items; with `role`, each item must have a role. A whole reply of the API is its first
        message."""
        items, used = unwrapped(items)
        found = [self.read_message(raw, index) for index, raw in _notes.as_mappings(items, role=role)]
        for index, usage in used.items():
            found[index] = replace(found[index], usage=usage)
        return found

    def to(self, messages: Iterable[model.Message], shape: _notes.Shape, on_loss: OnLoss | None) -> list[_notes.Json]:
        check_choice(shape, "shape", get_args(_notes.Shape), InvalidInputError)
        out: list[_notes.Json] = []
        with Losses(self.form, on_loss) as losses:
            for message, places in self._pieces(messages, shape, losses):
                losses.places = places
                items = self.write_message(message, shape, losses)
                plain = len(items) == 1 and _is_plain(items[0])  # like most items, which contain no further keys
                if shape != "original" and self.sdk_keys and not plain:
                    items = [item if _is_plain(item) else without(item, self.sdk_keys) for item in items]
                if shape == "request":
                    items = items if plain else [self.for_request(item, message.id, losses) for item in items]
                    items = [item for item in items if not self.is_empty(item)]
                out += items
        return out

    def _pieces(self, messages: Iterable[model.Message], shape: _notes.Shape, losses: Losses) -> Iterator[Piece]:
        found = map(whole, messages) if shape == "original" else adapted(messages, self.is_own, losses)
        for message, places in found:
            message = message if shape == "original" else self.prepared(message)
            for piece, at in pieces_of(message, every=True) if self.results_apart else (whole(message),):
                yield piece, places if piece is message else [places[one] for one in at]

    def prepared(self, message: model.Message) -> model.Message:
        """A message as the API accepts it."""
        return message

    def for_request(self, item: _notes.Json, message_id: str, losses: Losses) -> _notes.Json:
        """A message without the keys that occur only in replies."""

        def dropped(key: str, value: Any) -> None:
            if key not in self.metadata and value not in (None, "", [], {}):
                losses.add(message_id, None, f"the key {key!r}, which a request does not have")

        item = without(item, self.reply_keys, dropped=dropped)
        if not self.request:
            return item
        item = without(item, {"": frozenset(self.request), **self.inside}, only=True, dropped=dropped)
        return {key: value for key, value in item.items() if value is not None or key == "content"}

    def is_empty(self, item: _notes.Json) -> bool:
        """Whether the API rejects a message as empty."""
        return False

    def note(self, holder: model.Message | model.Part) -> Mapping[str, Any]:
        return _notes.note_of(holder, self.form)

    def meta(self, note: _notes.Json) -> _notes.Json | None:
        """The `provider_meta` of a part with this note."""
        return _notes.with_note(self.form, note)

    def tool_use(self, id_: str, name: str, value: Any, note: _notes.Json) -> model.ToolUsePart:
        value = _notes.kept_value(value, note)
        return _notes.noted(model.ToolUsePart(id=id_, name=name, input=value), self.form, note)

    def tool_result(
        self, id_: Any, content: Any, note: _notes.Json, *, name: Any = None, is_error: bool = False
    ) -> model.ToolResultPart:
        content = _notes.kept_value(content, note)
        id_, name, meta = text_or_none(id_) or "", text_or_none(name), self.meta(note)
        return model.ToolResultPart(tool_use_id=id_, content=content, is_error=is_error, name=name, provider_meta=meta)

    def is_own(self, part: Any) -> bool:
        """Whether a part has a note of this provider, or an item of it."""
        if isinstance(part, model.UnknownPart):
            return part.type.startswith(f"{self.form}/")
        return self.form in (part.provider_meta or {})

    def is_foreign(self, part: model.ReasoningPart) -> bool:
        """Whether a part came from another provider. False for a part that came from no provider."""
        return not self.is_own(part) and any(name in (part.provider_meta or {}) for name in _notes.FORMS)

    def source(
        self, part: model.AttachmentPart, shape: _notes.Shape
    ) -> tuple[Literal["uploaded", "inline", "url", ""], str | None]:
        """How the provider can get the content of a file, and its id there or its URL; "" if it cannot."""
        reference = part.reference
        if (uploaded := file_id(part, self.form)) is not None:
            return "uploaded", uploaded
        if reference is not None and split_data_url(reference)[1] is not None:
            return "inline", reference if shape == "original" else accepted_data_url(reference)
        if reference is not None and (shape == "original" or reference.startswith(("http://", "https://"))):
            return "url", reference
        return "", None

    def read(self, block: Any) -> model.Part:
        return _notes.read_block(self.form, block, self.known(block), self.render)

    def write(self, part: model.Part, shape: _notes.Shape) -> _notes.Rendered:
        """The block for a part, with its note."""
        kind = type(part)
        not_null, free = self.not_null.get(kind, ()), self.free.get(kind, ())
        return _notes.write_block(self.form, part, self.render, shape, not_null, free)

    def hinted(self, part: model.Part, rendered: _notes.Rendered, shape: _notes.Shape) -> _notes.Rendered:
        """The rendered block of a part, or a text instead of a file that cannot be sent."""
        block, lost = rendered
        if block is None and shape != "original" and isinstance(part, model.AttachmentPart):
            block = self.text(model.TextPart(file_hint(part)), shape)[0]
        return block, lost

    def render(self, part: model.Part, shape: _notes.Shape) -> _notes.Rendered:
        match part:
            case model.TextPart():
                return self.text(part, shape)
            case model.ReasoningPart():
                return self.reasoning(part, shape)
            case model.ToolUsePart():
                return self.call(part, shape)
            case model.ToolResultPart():
                return self.result(part, shape)
            case model.AttachmentPart():
                return self.file(part, shape)
        return None, "a part of an unknown kind"

    def rebuilt(self, ours: _notes.Json, message: model.Message, shape: _notes.Shape) -> _notes.Json:
        role = ours["role"]
        not_null, free = self.not_null.get(model.Message, ()), self.free.get(role, ())
        return _notes.rebuild(ours, self.note(message), valid=shape != "original", free=free, not_null=not_null)

    def role_of(self, raw: Mapping[str, Any]) -> tuple[model.Role, _notes.Json]:
        """Our role for a message, and the beginning of its note."""
        role = self.roles.get(raw["role"], "user")  # an unknown role must not gain the authority of system
        return role, {} if raw["role"] == role else {"role": raw["role"]}

    def lost_role(self, note: Mapping[str, Any], shape: _notes.Shape) -> str | None:
        """The loss of a role that the provider does not define."""
        role = note.get("role")
        return None if role is None or shape == "original" or role in self.roles else f"the role {role!r}"

    def body(self, message: model.Message, note: Mapping[str, Any], shape: _notes.Shape) -> _notes.Json:
        """The dict of a message, in the default order of keys, without its note."""
        raise NotImplementedError

    def noted(self, message: model.Message, note: _notes.Json, raw: Mapping[str, Any], where: str) -> model.Message:
        """`message` with the note that restores `raw`, whose content is text, a list or null."""
        ours = self.body(message, note, "original")
        if (written := _kind(raw.get("content"))) != _kind(ours["content"]):
            note["content"] = written
            ours = self.body(message, note, "original")
        return _notes.noted_message(message, self.form, note, raw, ours, where)


def _is_plain(item: _notes.Json) -> bool:
    """Whether a message has only a role and a text, like most messages."""
    return len(item) == 2 and type(item.get("content")) is str


def _kind(content: Any) -> str:
    """How content was written, for `content_of`."""
    return "null" if content is None else "list" if isinstance(content, list) else "text"
