"""What the formats of all providers have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, get_args

from redis_history._validation import check_choice
from redis_history.errors import InvalidInputError
from redis_history.formats._losses import Losses, OnLoss
from redis_history.formats._notes import (
    Json,
    Rendered,
    Shape,
    as_mappings,
    note_of,
    noted_message,
    read_block,
    rebuild,
    write_block,
)
from redis_history.model import Message, Part, Role


class Format:
    """Converts the messages of one provider. A subclass converts single blocks and single messages."""

    #: The key of this provider's notes in `provider_meta`.
    form: ClassVar[str]
    #: Our role for each role of the provider.
    roles: ClassVar[Mapping[str, Role]]
    #: Keys of a request (if the API rejects others), and keys of a reply that are not content.
    request: ClassVar[Collection[str]] = ()
    metadata: ClassVar[Collection[str]] = ()
    #: Keys, by the type of the part or message, that the provider's types do not accept as null.
    not_null: ClassVar[Mapping[type, Collection[str]]] = {}

    def known(self, block: Any) -> Part | None:
        """The part for a block; None for an opaque part."""
        raise NotImplementedError

    def render(self, part: Part, shape: Shape) -> Rendered:
        """The block for a part, without its note."""
        raise NotImplementedError

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
                items = self.write_message(message, shape, losses)
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

    def is_own(self, part: Any) -> bool:
        """Whether a part has a note of this provider."""
        return self.form in (part.provider_meta or {})

    def read(self, block: Any) -> Part:
        return read_block(self.form, block, self.known(block), self.render)

    def write(self, part: Part, shape: Shape) -> Rendered:
        """The block for a part, with its note."""
        return write_block(self.form, part, self.render, shape, self.not_null.get(type(part), ()))

    def rebuilt(self, ours: Json, holder: Message | Part, shape: Shape, free: Collection[str] = ()) -> Json:
        not_null = self.not_null.get(type(holder), ())
        return rebuild(ours, self.note(holder), valid=shape != "original", free=free, not_null=not_null)

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
        written = _kind(raw.get("content"))
        if written != _kind(self.body(message, note, "original")["content"]):
            note["content"] = written
        return noted_message(message, self.form, note, raw, self.body(message, note, "original"), where)


def _kind(content: Any) -> str:
    """How content was written, for `content_of`."""
    return "null" if content is None else "list" if isinstance(content, list) else "text"
