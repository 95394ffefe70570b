"""The two spellings of Gemini's keys: `function_call` in Python, `functionCall` on the wire. Both are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["to_camel", "to_snake"]

_PART = {
    "inlineData": "inline_data",
    "fileData": "file_data",
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "executableCode": "executable_code",
    "codeExecutionResult": "code_execution_result",
    "thoughtSignature": "thought_signature",
    "videoMetadata": "video_metadata",
    "mediaResolution": "media_resolution",
    "partMetadata": "part_metadata",
    "toolCall": "tool_call",
    "toolResponse": "tool_response",
}
_INNER = {
    "mimeType": "mime_type",
    "fileUri": "file_uri",
    "displayName": "display_name",
    "partialArgs": "partial_args",
    "willContinue": "will_continue",
    "startOffset": "start_offset",
    "endOffset": "end_offset",
}
# Values of these keys belong to the caller: their keys are not converted.
_OPAQUE = frozenset(("args", "response", "parts"))


def to_snake(part: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(part, _PART, _INNER)


def to_camel(part: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `to_snake`, for a part whose keys were all in camel case."""
    return _renamed(part, {new: old for old, new in _PART.items()}, {new: old for old, new in _INNER.items()})


def _renamed(part: Mapping[str, Any], names: Mapping[str, str], inner: Mapping[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in part.items():
        if isinstance(value, Mapping) and (key in names or key in names.values()):
            value = {inner.get(name, name) if name not in _OPAQUE else name: item for name, item in value.items()}
        out[names.get(key, key)] = value
    return out
