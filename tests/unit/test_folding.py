import random
from typing import Any, get_args

import pytest

from redis_history import HistoryStore, Message, assistant, user
from redis_history.values import events
from redis_history.values.folding import fold_of

CURSOR: dict[str, Any] = {"conversation_id": "c", "revision": 1, "cursor": events.BEGINNING}
X = user("x", id="x")
#: Events that do not have all messages that they concern.
INCOMPLETE = (events.HistoryCompacted, events.HistoryExpanded, events.Reset)


def test_each_kind_of_event_has_an_effect_or_none() -> None:
    given = {
        "messages": (X,), "removed_ids": ("x",), "message_ids": ("x",), "message_id": "x", "message": X, "offset": 0,
        "delta": "x", "parts": X.parts, "run": None, "summary_id": "s", "summary": X, "through": (0, 1), "count": 1,
        "fields": {}, "reason": "log_trimmed",
    }  # fmt: skip
    for kind in get_args(events.Event):
        known = {name: given[name] for name in kind.__struct_fields__ if name in given}
        fold = fold_of(kind(**known, **CURSOR))
        assert (fold is None) == (kind in INCOMPLETE), kind
    for kind in (events.MessageUpdated(message_id="x", message=None, **CURSOR),
                 events.ReplyEnded(message_id="x", message=None, offset=0, delta="", **CURSOR)):  # fmt: skip
        fold = fold_of(kind)
        assert fold is not None
        assert fold.removed == ("x",)


@pytest.mark.parametrize("seed", range(20))
def test_folded_events_are_the_stored_messages(seed: int) -> None:
    rng, known = random.Random(seed), dict[str, Message]()
    ids = "abcdef"
    with HistoryStore("memory://") as store, store.subscribe("c") as changes:
        for _ in range(30):
            match rng.randrange(6):
                case 0 | 1:
                    name = rng.choice(ids)
                    if store.get_message("c", name) is None:
                        store.append("c", user("x", id=name))
                case 2:
                    if found := store.get("c"):
                        store.update_message("c", assistant(str(rng.random()), id=rng.choice(found).id))
                case 3:
                    store.delete_messages("c", rng.sample(ids, 2))
                case 4:
                    store.restore("c", [user(str(rng.random()), id=name) for name in rng.sample(ids, 3)])
                case 5 if rng.random() < 0.3:
                    store.clear("c")
            if rng.random() < 0.5:  # otherwise events have messages as they are some changes later
                while (event := changes.get(timeout=0)) is not None:
                    fold = fold_of(event)
                    assert fold is not None
                    known = {} if fold.clears else known
                    known |= {one.id: one for one in (*fold.added, *fold.ended)}
                    known |= {one.id: one for one in fold.changed if one.id in known}
                    known = {name: one for name, one in known.items() if name not in fold.removed}
                assert sorted(known.values(), key=lambda one: one.sequence or 0) == sorted(
                    store.get("c"), key=lambda one: one.sequence or 0
                )
