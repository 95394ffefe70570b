"""Made-up conversations of a shop's support, for pictures and tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from redis_history import (
    AttachmentPart,
    Conversation,
    HistoryStore,
    Message,
    Participant,
    ReasoningPart,
    Source,
    ToolUsePart,
    Usage,
    tool_result,
    tool_use,
)

MAIN = "ticket/48213"

MAYA = Participant("user", "u-maya", "Maya Lindqvist")
DESK = Participant("agent", "desk", "Front desk")
ORDERS = Participant("agent", "orders", "Orders")

#: Other conversations: minutes since their end, id, title, agent, last message.
LISTED = (
    (
        70000,
        "ticket/48151",
        "Assembly: a screw too few",
        "Front desk",
        "A bag of screws is on its way.",
    ),
    (
        9000,
        "ticket/48165",
        "Two accounts, one e-mail address",
        "Front desk",
        "Both are merged, with all orders.",
    ),
    (4000, "ticket/48177", "متى يصل الطلب؟", "Shipping", "يصل طلبك يوم الخميس قبل الظهر."),
    (1440, "ticket/48190", "Cancel the second chair", "Orders", "Cancelled. The first one still arrives on Tuesday."),
    (1400, "ticket/48198", "Où est ma caution ?", "Refunds", "Elle arrive sur votre compte dans les trois jours."),
    (44, "ticket/48207", "Parcel stuck in customs", "Shipping", "The carrier asks for the receipt; I have sent it on."),
    (9, "ticket/48219", "Invoice with the VAT number", "Billing", "The corrected invoice is attached. Anything else?"),
)

SUMMARY = (
    "[Earlier conversation summary: Maya ordered a rain jacket (order 48213, size S) and got size L. She wants the "
    "right size before her trip on Friday, or her money back. Front desk checked her account: a customer since 2019, "
    "no open claims. Photos of the label were received and show size L.]"
)

OFFER = """Good news, Maya: **the right size** can be with you on Thursday.

| | exchange | refund |
|---|---|---|
| when | Thursday, by express | within 3 days |
| costs you | nothing | nothing |

For both, put the [return label](https://example.com/r/48213) on the parcel:

1. print it, or show the code at the counter
2. hand the parcel in before Friday

Shall I send it?"""

BEGUN = "Done. The parcel leaves Hamburg tonight, and the driver has your office"
BRANCH = "Order 48213: money back"
ASKED = "@Orders: is there a size S"


class Writer:
    """Messages a little while apart, the first of them `minutes` ago."""

    def __init__(self, minutes: float) -> None:
        self._at = datetime.now(UTC) - timedelta(minutes=minutes)

    def __call__(self, who: Participant, *parts: Any, after: float = 20, **more: Any) -> Message:
        self._at += timedelta(seconds=after)
        role: Any = "assistant" if who.kind == "agent" else who.kind
        return Message(role=role, parts=parts, participant=who, timestamp=self._at, **more)

    def result(self, call: str, content: Any, *, after: float = 1.4, error: bool = False) -> Message:
        self._at += timedelta(seconds=after)
        return Message(role="tool", parts=tool_result(call, content, error), timestamp=self._at)


def tell(store: HistoryStore) -> None:
    """Store the conversations of the pictures."""
    for age, name, title, agent, last in LISTED:
        say = Writer(age)
        store.create_conversation(Conversation(name, title=title, agent_name=agent.lower(), user_id="u-1"))
        store.append_many(name, [say(MAYA, title), say(Participant("agent", agent.lower(), agent), last)])
    title = "Order 48213: the wrong size arrived"
    store.create_conversation(Conversation(MAIN, title=title, user_id="u-maya", agent_name="support"))
    early = first()
    store.append_many(MAIN, early)
    store.compact(MAIN, through=early[-1], summary=SUMMARY)
    store.append_many(MAIN, rest())


def spend(store: HistoryStore) -> None:
    """Six weeks of usage, with less on weekends."""
    today = datetime.now(UTC)
    for agent, share in (("support", 5), ("orders", 3), ("shipping", 2), ("billing", 1)):
        name = f"usage/{agent}"
        store.create_conversation(Conversation(name, title=f"Usage of {agent}", user_id="u-1", agent_name=agent))
        for ago in range(42):
            day = today - timedelta(days=ago)
            tokens = share * (40_000 - 900 * ago + 7_000 * (ago * 5 % 7)) // (1 + 3 * (day.weekday() > 4))
            used = Usage(tokens, tokens // 12, tokens // 2, cost=tokens * 3.1e-6)
            store.append(name, Message(role="assistant", parts="Done.", usage=used, timestamp=day))
        store.delete_conversation(name)  # what was spent stays counted


def request(store: HistoryStore) -> None:
    """Two calls that wait for approval."""
    for name, tool, arguments in (
        (MAIN, "refund", {"order": "48213", "amount": 89.0, "currency": "EUR"}),
        ("ticket/48207", "send_mail", {"to": "customs@carrier.example", "subject": "Receipt for parcel 77120"}),
    ):
        asking = tool_use(f"{tool}-1", tool, arguments, needs_approval=True)
        store.append(name, Writer(0.4)(ORDERS, asking))


def branch(store: HistoryStore) -> None:
    """Two branches of the main conversation."""
    asked = next(one for one in store.get(MAIN) if one.text.startswith(ASKED))
    for name, title, words in (
        ("ticket/48213-b", "Order 48213: another jacket", "Would the blue one do? It is here in size S."),
        ("ticket/48213-c", BRANCH, "I have asked for your money back. It is with you in three days."),
    ):
        store.fork(MAIN, name, through=asked)
        store.update_conversation(name, title=title)
        store.append(name, Writer(1)(DESK, words))
        store.pin(name, asked.id)


def first() -> list[Message]:
    """The messages that the summary replaces."""
    say = Writer(41)
    photos = [
        AttachmentPart(name=name, size=size, modality="image", mime_type="image/jpeg", reference=f"s3://in/{name}")
        for name, size in (("label.jpg", 481_220), ("parcel.jpg", 1_204_113))
    ]
    return [
        say(MAYA, "Hello, my jacket came today, but it is size L. I ordered S."),
        say(DESK, "I am sorry about that, Maya. Can you send me a photo of the label?"),
        say(MAYA, "Of course.", *photos),
        say(DESK, ToolUsePart("call_0", "find_customer", {"name": "Maya Lindqvist"})),
        say.result("call_0", '{"id": "u-maya", "since": 2019, "open_claims": 0}'),
        say(DESK, "Thank you, that is clear. The label says L."),
        say(MAYA, "I leave on Friday and need it before. Otherwise I would like my money back."),
        say(DESK, "Understood. I ask our order desk what is possible by Friday."),
    ]


def rest() -> list[Message]:
    """The messages after the summary."""
    say = Writer(21)
    question = "@Orders: is there a size S that reaches Maya before Friday?"
    plan = "Two warehouses carry this jacket. Malmö delivers overnight to Lund, so check stock there first."
    found = "Hamburg has 14. One is reserved (`R-77120`); by express it is in Lund on Thursday."
    usage = {"model": "desk-large-2", "usage": {"input_tokens": 2140, "output_tokens": 96}, "cost": 0.0031}
    times = "Express from Hamburg: 1 to 2 days."
    sources = (
        Source(document_name="Shipping times, Nordic countries", chunk=times, score=0.91),
        Source(document_name="Exchange policy", chunk="An exchange for our mistake is free of charge.", score=0.84),
    )

    def stock(warehouse: str) -> ToolUsePart:
        return ToolUsePart("call_1", "check_stock", {"sku": "RJ-2210-S", "warehouse": warehouse})

    def reserve(call: str) -> ToolUsePart:
        return ToolUsePart(call, "reserve", {"sku": "RJ-2210-S", "warehouse": "hamburg", "quantity": 1})

    return [
        say(DESK, question, metadata={"mentions": ["orders"]}),
        say(ORDERS, ReasoningPart(plan), stock("malmo")),
        say.result("call_1", '{"sku": "RJ-2210-S", "warehouse": "malmo", "free": 0, "next_delivery": "2026-11-30"}'),
        say(ORDERS, stock("hamburg"), after=2),
        say.result("call_1", '{"sku": "RJ-2210-S", "warehouse": "hamburg", "free": 14, "express": true}'),
        say(ORDERS, reserve("call_2"), after=2),
        say.result("call_2", "TimeoutError: the warehouse did not answer within 5 s", error=True, after=5.1),
        say(ORDERS, reserve("call_3"), after=3),
        say.result("call_3", '{"reservation": "R-77120", "until": "18:00"}', after=0.8),
        say(ORDERS, found, sources=sources),
        say(DESK, OFFER, after=31, metadata=usage),
        say(MAYA, "Yes please! To the office this time, not to my flat.", after=74),
    ]
