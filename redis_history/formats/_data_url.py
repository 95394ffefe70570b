"""Inline content as a data URL: the one way a reference can hold what a provider sent as base64."""

from __future__ import annotations

__all__ = ["data_url", "split_data_url"]


def data_url(mime_type: str, base64: str) -> str:
    """`data:image/png;base64,…`; nothing is decoded."""
    return f"data:{mime_type};base64,{base64}"


def split_data_url(url: str) -> tuple[str | None, str | None]:
    """Type and base64 text of a data URL; (None, None) for any other."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return head[5:-7], data
    return None, None
