"""The only module that spells Redis keys.

    rh2:{<namespace>:<bucket>}:<conversation>:s    hash: counters, and the position of each message
    rh2:{<namespace>:<bucket>}:<conversation>:m    sorted set: the messages
    rh2:{<namespace>:<bucket>}:<conversation>:l    list: the change log
    rh2:{<namespace>:<bucket>}:<conversation>:t:<token>       string: the content of a streaming reply
    rh2:{<namespace>:<bucket>}:<conversation>:a:<token>:<revision>    sorted set: messages replaced by a compaction, the
                                                              token of its change and its revision; of a fork or an
                                                              import that of the draft, and the number of the archive
    rh2:{<namespace>:<bucket>}:<conversation>:b:<digests>     string: a large content of a message, by the first 24
                                                              digits of the SHA-1 of its id, and its own digest
    rh2:{<namespace>:<bucket>}:<conversation>:x    sorted set: the staging copy of an expansion
    rh2:{<namespace>:<bucket>}:<conversation>:k    hash: the usage that was counted for each message id
    rh2:{<namespace>:<bucket>}:<conversation>:d:<token>       hash: the state of a draft; with :k, its usage
    rh2:{<namespace>:<bucket>}:<conversation>:d:<token>:0     sorted set: the live messages of a draft
    rh2:{<namespace>:<bucket>}:<conversation>:d:<token>:b     sorted set: the names of its large contents
    rh2:{<namespace>:<bucket>}:<conversation>:d:<token>:b:<digests>   string: one of these
    rh2:{<namespace>:<bucket>}:c                   sorted set: the bucket's conversations by time of last change
    rh2:{<namespace>:<bucket>}:u:<digest>          sorted set: those of a user_id (v: an agent_name, f: the forks of
                                                   a conversation), by its SHA-1
    rh2:{<namespace>:<bucket>}:a                   sorted set: the bucket's conversations with open requests for
                                                   approval, by the time of the oldest; a:u<digest> those of a
                                                   user_id, a:v<digest> of an agent_name
    rh2:{<namespace>:<bucket>}:e                   list: the audit trail of the bucket's conversations
    rh2:{<namespace>:<bucket>}:p                   hash: the usage of the bucket's conversations by day and agent
    rh2:{<namespace>:<bucket>}:p:<digest>          hash: the same of those of a user_id
    rh2:{<namespace>:<bucket>}:b:<digest>          hash: the budget of a user_id, in the bucket of this
    rh2:{<namespace>:<bucket>}:q                   sorted set: the bucket's conversations with a turn that is owed or
                                                   running, by the time of the question
    rh2:{<namespace>:<bucket>}:h                   sorted set: those with a turn that waits or is parked
    rh2:{<namespace>:<bucket>}:q:<digest>          sorted set: the turns of an agent, by the time when they are due
    rh2:{<namespace>:<bucket>}:q:<digest>:<digest>    sorted set: those of an agent and an owner
    rh2:{<namespace>:<bucket>}:k:<digest>:<digest>    sorted set: the runs of an agent and an owner, where limited
    rh2:{<namespace>:<bucket>}:g                   hash: unfinished work on search documents
    rh2:{<namespace>:<bucket>}:g:<generation>      sorted set: messages whose documents must be deleted

    rhd2:{<namespace>:<bucket>}:<conversation>:<generation>:<sequence>    hash: the search document of a message

Names are percent-encoded (RFC 3986), so that different names give different keys, and a name cannot add a brace, a
wildcard, a separator or a newline. A conversation belongs to one of 64 buckets by the CRC-32 of its id. The bucket is
in the hash tag, so a conversation *and its bucket's list* are in one cluster slot, and one script can write both. 64
lists are few enough to merge for a listing, and enough to spread over the nodes of a cluster.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.values.ids import check_conversation_id, digest_of

BUCKETS: Final = 64
_MAX_NAMESPACE_BYTES: Final = 128


def is_list(key: bytes) -> bool:
    """Whether it is the list of an owner, an agent or forks, or a key of usage. Writes of a conversation need the same
    ones again."""
    kind, last = (b"", *key.rsplit(b":", 2))[-2:]
    return last in (b"k", b"p") if len(last) != 40 else kind in (b"u", b"v", b"f", b"p")


def without_digest(key: bytes) -> bytes:
    """A key without the digest at its end, if `is_list` knows it: a conversation has one of each kind."""
    return key[:-40] if len(key.rpartition(b":")[2]) == 40 and is_list(key) else key


def is_of_turns(key: bytes) -> bool:
    """Whether it lists turns."""
    return key[key.find(b"}:") + 2 :].split(b":")[0] in (b"q", b"h") and not key.endswith((b":s", b":m", b":l"))


def content_name(message_id: str, digest: str) -> bytes:
    """The name of a large content of a message. Scripts also make it."""
    return (hashlib.sha1(message_id.encode(), usedforsecurity=False).hexdigest()[:24] + digest).encode()


def is_reply_or_archive(key: bytes) -> bool:
    """Whether it is the content of a streaming reply or an archive, whose names end with a token of 16 digits, and a
    number behind that of an archive."""
    return key[-19:-16] == b":t:" or key.rpartition(b":")[0][-19:-16] == b":a:"


class ConversationKeys(NamedTuple):
    """The keys of one conversation. `name`: in its bucket's list; `writing`: the KEYS of writing scripts."""

    state: bytes
    messages: bytes
    log: bytes
    registry: bytes
    name: bytes
    writing: tuple[bytes, ...]

    @property
    def copy(self) -> bytes:
        """The staging copy of an expansion. Scripts also make this key."""
        return self.state[:-1] + b"x"

    @property
    def trail(self) -> bytes:
        """The bucket's audit trail. Scripts also make this key."""
        return self.registry[:-1] + b"e"

    @property
    def pending_work(self) -> bytes:
        """The bucket's unfinished work on search documents."""
        return self.registry[:-1] + b"g"

    def reply(self, token: str) -> bytes:
        """The content of a streaming reply. Scripts also make this key."""
        return b"%bt:%b" % (self.state[:-1], token.encode())

    def content(self, name: bytes, draft: str = "") -> bytes:
        """A large content by its `content_name`, or that of the draft of this token. Scripts also make this key."""
        return b"%b:%b" % (self.draft_contents(draft) if draft else self.state[:-1] + b"b", name)

    def draft_contents(self, token: str) -> bytes:
        """The names of the large contents of a draft. Scripts also make this key."""
        return self.draft(token) + b":b"

    def run_channel(self, run_id: str) -> bytes:
        """The channel that wakes the holder of a run, or a waiting agent. Scripts also make this name."""
        return b"%br:%b" % (self.state[:-1], run_id.encode())

    def draft(self, token: str) -> bytes:
        """The state of a draft: see lua/draft.lua."""
        return b"%bd:%b" % (self.state[:-1], token.encode())

    def archive(self, token: str, number: int) -> bytes:
        """The messages replaced by the compaction of this token and revision. Scripts also make this key."""
        return b"%ba:%b:%d" % (self.state[:-1], token.encode(), number)


class Keyspace:
    def __init__(self, namespace: str) -> None:
        if not isinstance(namespace, str) or not 1 <= len(namespace.encode(errors="replace")) <= _MAX_NAMESPACE_BYTES:
            raise ConfigurationError(f"a namespace is a string of 1 to {_MAX_NAMESPACE_BYTES} bytes, not {namespace!r}")
        self.namespace = namespace
        try:
            self._prefix = f"rh2:{{{quote(namespace, safe='')}:".encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError("the namespace has a lone surrogate, which UTF-8 cannot carry") from error
        # An entry takes about 500 bytes.
        self.conversation = lru_cache(maxsize=4096)(self.keys_of)

    def keys_of(self, conversation_id: str) -> ConversationKeys:
        """The keys of one conversation, not cached: for loops over many."""
        encoded = check_conversation_id(conversation_id)
        tag = b"%b%02x}:" % (self._prefix, self.bucket_of(conversation_id))
        name = quote(encoded, safe="").encode()
        base = tag + name
        keys = (base + b":s", base + b":m", base + b":l", tag + b"c")
        return ConversationKeys(*keys, name, keys)

    def registries(self) -> list[bytes]:
        return [b"%b%02x}:c" % (self._prefix, bucket) for bucket in range(BUCKETS)]

    #: A glob for the registries of all namespaces.
    all_registries: Final = b"rh2:{*:??}:c"

    @staticmethod
    def namespace_of(registry: bytes) -> str:
        """The namespace of a registry's key."""
        return unquote(registry[len("rh2:{") : -len(":00}:c")].decode(errors="replace"))

    def lists(self, kind: Literal["u", "v", "f"], owner: int | str) -> list[bytes]:
        """The key of each bucket's list of the conversations of an owner ("u") or an agent ("v"), or of the forks of a
        conversation ("f")."""
        digest = digest_of(owner)
        return [b"%b%02x}:%b:%b" % (self._prefix, bucket, kind.encode(), digest) for bucket in range(BUCKETS)]

    def approvals(self, user_id: int | str | None, agent_name: str | None) -> list[bytes]:
        """The key of each bucket's list of conversations with open requests for approval: of an owner, else of an
        agent, else all. Scripts also make these keys."""
        end = b""
        if user_id is not None:
            end = b":u" + digest_of(user_id)
        elif agent_name is not None:
            end = b":v" + digest_of(agent_name)
        return [b"%b%02x}:a%b" % (self._prefix, bucket, end) for bucket in range(BUCKETS)]

    def trails(self) -> list[bytes]:
        """The key of each bucket's audit trail."""
        return [key[:-1] + b"e" for key in self.registries()]

    def totals(self, owner: int | str | None) -> list[bytes]:
        """The key of each bucket's totals of usage: of an owner, or of all conversations."""
        ending = b"" if owner is None else b":" + digest_of(owner)
        return [b"%b%02x}:p%b" % (self._prefix, bucket, ending) for bucket in range(BUCKETS)]

    def budget(self, owner: int | str) -> bytes:
        """The key of the budget of an owner."""
        digest = digest_of(owner)
        return b"%b%02x}:b:%b" % (self._prefix, int(digest[:8], 16) % BUCKETS, digest)

    def turn_lists(self, *, open: bool) -> list[bytes]:
        """The key of each bucket's list of conversations with a turn that is owed or running, or waits or is parked."""
        kind = b"q" if open else b"h"
        return [b"%b%02x}:%b" % (self._prefix, bucket, kind) for bucket in range(BUCKETS)]

    def turn_keys(self, agent_name: str | None, bucket: int) -> tuple[bytes, ...]:
        """The keys that a call which changes the turn of an agent may touch. Scripts also make these keys."""
        index = self.turn_index(agent_name, bucket)
        base = index[: -len("q:") - 40]
        return base + b"q", base + b"h", index

    def turn_index(self, agent_name: str | None, bucket: int) -> bytes:
        """The key that the workers of an agent read. Scripts also make this key."""
        digest = hashlib.sha1((agent_name or "").encode(), usedforsecurity=False).hexdigest().encode()
        return b"%b%02x}:q:%b" % (self._prefix, bucket, digest)

    def turn_indexes(self, agent_name: str | None) -> list[bytes]:
        return [self.turn_index(agent_name, bucket) for bucket in range(BUCKETS)]

    def seats(self, agent_name: str | None, owner: int | str) -> bytes:
        """The runs of an owner that workers of an agent make now, where their number is limited."""
        digest = digest_of(owner)
        index = self.turn_index(agent_name, zlib.crc32(digest) % BUCKETS)
        return index.replace(b"}:q:", b"}:k:") + b":" + digest

    def worker_channel(self, agent_name: str | None, number: int) -> bytes:
        """A channel that wakes an idle worker of an agent. Scripts also make this name."""
        return self.turn_index(agent_name, 0).replace(b"}:q:", b"}:w:") + b":%d" % number

    def pending_work(self) -> list[bytes]:
        """The key of each bucket's unfinished work on search documents."""
        return [b"%b%02x}:g" % (self._prefix, bucket) for bucket in range(BUCKETS)]

    @staticmethod
    def bucket_of(conversation_id: str) -> int:
        return zlib.crc32(conversation_id.encode()) % BUCKETS

    @property
    def logs(self) -> bytes:
        """A glob for the change logs of this namespace. Matches no other keys of this package."""
        return self._prefix + b"??}:*:l"

    @staticmethod
    def id_of_log(key: bytes) -> str:
        """The conversation id of a change log's key, or of a channel that ends with it."""
        return Keyspace.name_to_id(key[key.rindex(b"}:") + 2 : -2])

    @property
    def documents(self) -> bytes:
        """The prefix of the keys of this namespace's search documents, and of no others."""
        return b"rhd2" + self._prefix[3:]

    @property
    def index(self) -> bytes:
        """The alias of this namespace's search index."""
        return b"rh2:" + quote(self.namespace, safe="").encode()

    def index_names(self, *, cluster: bool) -> list[bytes]:
        """The alias of the search index. In a cluster each node has an index, and its alias is in the slot of a bucket
        of the node."""
        return [key[:-2] for key in self.registries()] if cluster else [self.index]

    def documents_of(self, conversation_id: str, generation: bytes) -> bytes:
        """The prefix of the search documents of one generation of a conversation."""
        keys = self.conversation(conversation_id)
        return b"rhd2%b%b:" % (keys.state[3:-1], generation)

    def document_of(self, key: bytes) -> tuple[tuple[str, bytes], int] | None:
        """The conversation id with the generation, and the sequence, of a search document; None for other keys. The
        sequence of a summary has a minus, because a message that it replaced has the same."""
        if not key.startswith(self.documents):
            return None
        try:
            _, name, generation, sequence = key[len(self.documents) :].split(b":")
            conversation_id, number = self.name_to_id(name), int(sequence)
            expected = b"%b%d" % (self.documents_of(conversation_id, generation), number)
            return ((conversation_id, generation), number) if key == expected else None
        except (ValueError, InvalidInputError):
            return None

    @property
    def patterns(self) -> tuple[bytes, bytes]:
        """Globs for the keys of this namespace alone. The second is for search documents. For people and tests,
        not for the store."""
        return self._prefix + b"??}:*", self.documents + b"??}:*"

    @staticmethod
    def name_to_id(name: bytes) -> str:
        """The conversation id of a name in a registry; "" for a name that this package did not write."""
        try:
            conversation_id = unquote(name.decode("ascii"), errors="strict")
            return conversation_id if quote(check_conversation_id(conversation_id), safe="").encode() == name else ""
        except (UnicodeDecodeError, InvalidInputError):
            return ""
