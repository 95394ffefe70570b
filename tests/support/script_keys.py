"""The keys in the commands that scripts use."""

from typing import Final

#: How many arguments of a command are keys, from the first on. Other commands take one key.
KEYS_OF: Final = {"UNLINK": 9999, "EXISTS": 9999, "RENAME": 2, "ZRANGESTORE": 2}
WITHOUT_KEYS: Final = {"TIME", "PUBLISH", "SPUBLISH", "PUBSUB", "FT.SEARCH", "FT.AGGREGATE"}


def keys_of(words: list[bytes]) -> list[bytes]:
    """The keys of a command."""
    name = words[0].decode().upper()
    return [] if name in WITHOUT_KEYS else words[1 : 1 + KEYS_OF.get(name, 1)]
