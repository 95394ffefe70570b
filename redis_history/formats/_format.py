"""The common part of all formats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal, get_args

from redis_history._validation import check_choice
from redis_history.errors import InvalidInputError
from redis_history.formats._content import file_id, split_data_url, text_or_none
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    FORMS,
    Json,
    Rendered,
    Shape,
    as_mappings,
    kept_value,
    note_of,
    noted_message,
    read_block,
    rebuild,
    with_note,
    write_block,
)
from redis_history.formats._pairing import pieces_of
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)


class Format:
    """Converts the messages of one provider. A subclass converts single blocks and single messages."""

    #: The key of this provider's notes in `provider_meta`.
    form: ClassVar[str]
    #: Our role for each role of the provider.
    roles: ClassVar[Mapping[str, Role]]
    #: Whether a result is always a message of its own.
    results_apart: ClassVar[bool] = False
    #: Keys of a request (if the API rejects others), and keys of a reply that are not content.
    request: ClassVar[Collection[str]] = ()
    metadata: ClassVar[Collection[str]] = ()
    #: Keys that the provider's types do not accept as null, and keys that the original decides in every shape, by the
    #: type of the part or the role of the message: see `rebuild`.
    not_null: ClassVar[Mapping[type | str, Collection[str]]] = {}
    free: ClassVar[Mapping[type | str, Collection[str]]] = {}

    def known(self, block: Any) -> Part | None:
        """The part for a block; None for an opaque part."""
        raise NotImplementedError

    # The block for a part, without its note; and what was lost.

    def text(self, part: TextPart, shape: Shape) -> Rendered:
        return {"type": "text", "text": part.text}, None

    def reasoning(self, part: ReasoningPart, shape: Shape) -> Rendered:
        return None, "reasoning of another provider"

    def call(self, part: ToolUsePart, shape: Shape) -> Rendered:
        raise NotImplementedError

    def result(self, part: ToolResultPart, shape: Shape) -> Rendered:
        raise NotImplementedError

    def file(self, part: AttachmentPart, shape: Shape) -> Rendered:
        raise NotImplementedError

    # Whole messages

    def read_message(self, raw: Mapping[str, Any], index: int) -> Message:
        raise NotImplementedError

    def write_message(self, message: Message, shape: Shape, losses: Losses) -> list[Json]:
        raise NotImplementedError

    def from_(self, items: Iterable[Any], *, role: bool = True) -> list[Message]:
        """The messages of items; with `role`, each item must have a role."""
        return [self.read_message(raw, index) for index, raw in as_mappings(items, role=role)]

    def to(self, messages: Iterable[Message], shape: Shape, on_loss: OnLoss | None) -> list[Json]:
        check_choice(shape, "shape", get_args(Shape), InvalidInputError)
        out: list[Json] = []
        with Losses(self.form, on_loss) as losses:
            for message in messages:
                for piece, losses.offset in pieces_of(message, every=True) if self.results_apart else ((message, 0),):
                    items = self.write_message(piece, shape, losses)
                    if shape == "request" and self.request:
                        items = [self._for_request(item, message.id, losses) for item in items]
                    out += items
        return out

    def _for_request(self, item: Json, message_id: str, losses: Losses) -> Json:
        for key, value in item.items():
            if key not in self.request and key not in self.metadata and value not in (None, "", [], {}):
                losses.add(message_id, None, f"the key {key!r}, which a request does not have")
        return {key: value for key, value in item.items() if key in self.request}

    def note(self, holder: Message | Part) -> Mapping[str, Any]:
        return note_of(holder, self.form)

    def meta(self, note: Json) -> Json | None:
        """The `provider_meta` of a part with this note."""
        return with_note(self.form, note)

    def tool_use(self, id_: str, name: str, value: Any, note: Json) -> ToolUsePart:
        value = kept_value(value, note)
        return ToolUsePart(id=id_, name=name, input=value, provider_meta=self.meta(note))

    def tool_result(
        self, id_: Any, content: Any, note: Json, *, name: Any = None, is_error: bool = False
    ) -> ToolResultPart:
        content = kept_value(content, note)
        id_, name, meta = text_or_none(id_) or "", text_or_none(name), self.meta(note)
        return ToolResultPart(tool_use_id=id_, content=content, is_error=is_error, name=name, provider_meta=meta)

    def is_own(self, part: Any) -> bool:
        """Whether a part has a note of this provider."""
        return self.form in (part.provider_meta or {})

    def is_foreign(self, part: ReasoningPart) -> bool:
        """Whether a part came from another provider. False for a part that came from no provider."""
        return not self.is_own(part) and any(name in (part.provider_meta or {}) for name in FORMS)

    def source(self, part: AttachmentPart, shape: Shape) -> tuple[Literal["uploaded", "inline", "url", ""], str | None]:
        """How the provider can get the content of a file, and its id there or its URL; "" if it cannot."""
        reference = part.reference
        if (uploaded := file_id(part, self.form)) is not None:
            return "uploaded", uploaded
        if split_data_url(reference)[1] is not None:
            return "inline", reference
        if reference is not None and (shape == "original" or reference.startswith(("http://", "https://"))):
            return "url", reference
        return "", None

    def read(self, block: Any) -> Part:
        return read_block(self.form, block, self.known(block), self.render)

    def write(self, part: Part, shape: Shape) -> Rendered:
        """The block for a part, with its note."""
        kind = type(part)
        not_null, free = self.not_null.get(kind, ()), self.free.get(kind, ())
        return write_block(self.form, part, self.render, shape, not_null, free)

    def render(self, part: Part, shape: Shape) -> Rendered:
        match part:
            case TextPart():
                return self.text(part, shape)
            case ReasoningPart():
                return self.reasoning(part, shape)
            case ToolUsePart():
                return self.call(part, shape)
            case ToolResultPart():
                return self.result(part, shape)
            case AttachmentPart():
                return self.file(part, shape)
        return None, "a part of an unknown kind"

    def rebuilt(self, ours: Json, message: Message, shape: Shape) -> Json:
        role = ours["role"]
        not_null, free = self.not_null.get(Message, ()), self.free.get(role, ())
        return rebuild(ours, self.note(message), valid=shape != "original", free=free, not_null=not_null)

    def role_of(self, raw: Mapping[str, Any]) -> tuple[Role, Json]:
        """Our role for a message, and the beginning of its note."""
        role = self.roles.get(raw["role"], "user")  # an unknown role must not gain the authority of system
        return role, {} if raw["role"] == role else {"role": raw["role"]}

    def lost_role(self, note: Mapping[str, Any], shape: Shape) -> str | None:
        """The loss of a role that the provider does not define."""
        role = note.get("role")
        return None if role is None or shape == "original" or role in self.roles else f"the role {role!r}"

    def body(self, message: Message, note: Mapping[str, Any], shape: Shape) -> Json:
        """The dict of a message, in the default order of keys, without its note."""
        raise NotImplementedError

    def noted(self, message: Message, note: Json, raw: Mapping[str, Any], where: str) -> Message:
        """`message` with the note that restores `raw`, whose content is text, a list or null."""
        ours = self.body(message, note, "original")
        if (written := _kind(raw.get("content"))) != _kind(ours["content"]):
            note["content"] = written
            ours = self.body(message, note, "original")
        return noted_message(message, self.form, note, raw, ours, where)


def _kind(content: Any) -> str:
    """How content was written, for `content_of`."""
    return "null" if content is None else "list" if isinstance(content, list) else "text"
