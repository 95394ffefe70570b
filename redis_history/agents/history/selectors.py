"""Choosing messages for a prompt."""

from __future__ import annotations

from redis_history.errors import InvalidInputError
from redis_history.values import AttachmentPart, Message, TextPart, ToolResultPart
from redis_history.values._validation import check_integer
from redis_history.values.contents import readable_text
from redis_history.values.message import content_text
from redis_history.values.pairing import only_results
from redis_history.values.pairs import groups, without_cut_parts


class Selectors:
    """The methods of a `History` that choose from its entries, as plugins show them."""

    def get_entries(self) -> list[Message]:
        """The messages to choose from, oldest first."""
        raise NotImplementedError

    def count_tokens(self, message: Message) -> int:
        """Tokens of a message."""
        raise NotImplementedError

    def last_user(self) -> Message | None:
        """The newest user message with more than tool results, or None."""
        users = (entry for entry in reversed(self.get_entries()) if entry.role == "user" and not only_results(entry))
        return next(users, None)

    def last_assistant(self) -> Message | None:
        """The newest message of role assistant, or None."""
        return next((entry for entry in reversed(self.get_entries()) if entry.role == "assistant"), None)

    def range(self, from_end: int, to_end: int = 0) -> list[Message]:
        """The `from_end` newest messages without the `to_end` newest, oldest first, without calls and results whose
        partner is not among them.

        Raises InvalidInputError unless from_end > to_end >= 0.
        """
        for value, name in ((from_end, "from_end"), (to_end, "to_end")):
            check_integer(value, name, error=InvalidInputError)
        if from_end <= to_end:
            raise InvalidInputError(f"from_end must be more than to_end, not {from_end} and {to_end}")
        entries = self.get_entries()
        size = len(entries)
        return without_cut_parts(entries, max(0, size - from_end), max(0, size - to_end))

    def recent(self, count: int) -> list[Message]:
        """The `count` newest messages, oldest first, without results whose call is not among them."""
        check_integer(count, "count", error=InvalidInputError)
        entries = self.get_entries()
        return without_cut_parts(entries, max(0, len(entries) - count), len(entries))

    def by_tokens(self, max_tokens: int) -> list[Message]:
        """The newest messages with at most `max_tokens` tokens, oldest first, without a gap and without results whose
        call does not fit."""
        check_integer(max_tokens, "max_tokens", error=InvalidInputError)
        entries = self.get_entries()
        start, left = len(entries), max_tokens
        while start > 0 and (left := left - self.count_tokens(entries[start - 1])) >= 0:
            start -= 1
        group = groups(entries)
        for index in range(start, len(entries)):
            if group[index] < start:
                start = index + 1
        return entries[start:]

    def recent_text(self, count: int) -> str:
        """The `count` newest messages as lines: `User: …`, `File: report.pdf`, `Assistant: …`, `Tool: …`,
        `System: …`. An inline file without a name is shown by its kind, such as `Image`, and base64 in a text by a
        marker such as `[image]`."""
        check_integer(count, "count", error=InvalidInputError)
        entries = self.get_entries()
        lines: list[str] = []
        for entry in entries[max(0, len(entries) - count) :]:
            for part in entry.parts:
                if isinstance(part, TextPart):
                    lines.append(f"{entry.role.capitalize()}: {readable_text(part.text)[0]}")
                elif isinstance(part, ToolResultPart):
                    lines.append(f"Tool: {readable_text(content_text(part.content))[0]}")
                elif isinstance(part, AttachmentPart):
                    lines.append(_file_line(part))
        return "\n".join(lines)


def _file_line(part: AttachmentPart) -> str:
    is_inline = (part.reference or "").startswith("data:")
    name = part.name or part.id or (None if is_inline else part.reference or "unnamed")
    if name is not None:
        return f"File: {name}"
    kind = part.modality or (part.mime_type or (part.reference or "")[5:]).partition("/")[0]
    return kind.capitalize() if kind in ("image", "audio", "video") else "File"
