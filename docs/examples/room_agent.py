"""An agent in a channel with many people: recorded, known by all its names there, and able to search what was said.

`python room_agent.py redis://localhost:6379/0`. The model is a stand-in, so it needs no network.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis_history import (
    Conversation,
    HistoryStore,
    Message,
    Participant,
    assemble_prompt,
    capture,
    conversation_search_tool,
    tool,
    tool_result,
    user,
)
from redis_history.formats import from_openai_chat, to_openai_chat

GUIDE = Participant("agent", "guide", "Trip guide")

# What a chat platform says about a channel. Store it as the metadata of the conversation.
CHANNEL = {
    "channel_id": "C7",
    "channel_name": "trips",
    "members": [
        {"id": "U1", "display_name": "Ann"},
        {"id": "U2", "display_name": "Bob"},
        {"id": "U9", "display_name": "Travel Bot", "agent_id": "guide"},
    ],
}


def aliases_in(channel: Mapping[str, Any], agent_id: str) -> list[str]:
    """The ids and display names that the agent has in this channel."""
    own = [member for member in channel.get("members", ()) if member.get("agent_id") == agent_id]
    return [name for member in own for name in (member["id"], member.get("display_name")) if name]


def received(channel: Mapping[str, Any], event: Mapping[str, Any]) -> Message:
    """A message of the platform, with its author, its mentions and its place. Sent again, it has the same id."""
    names = {member["id"]: member.get("display_name") for member in channel["members"]}
    return user(
        event["text"],
        id=f"{channel['channel_id']}-{event['id']}",
        participant=Participant("user", event["user"], names.get(event["user"])),
        metadata={
            "platform_message_id": event["id"],
            "channel_id": channel["channel_id"],
            "channel_name": channel["channel_name"],
            "mentions": re.findall(r"<@(\w+)>", event["text"]),
        },
    )


def model(messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Stands for a model behind an API of chat completions: it searches once, and repeats what it found."""
    last = messages[-1]
    if last["role"] == "tool":
        found = [text for text in re.findall(r'"text": ?"([^"]*)"', last["content"]) if not text.endswith("?")]
        return {"role": "assistant", "content": f"It was said: {found[0]}" if found else "Nobody said that."}
    [name] = [one["function"]["name"] for one in tools]
    call = {"name": name, "arguments": json.dumps({"query": re.findall(r"\w+", last["content"])[-1]})}
    calls = [{"id": f"call-{len(messages)}", "type": "function", "function": call}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


class RoomAgent:
    """Call `hears` with every message of the channel. It answers those that are for it; all are recorded."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self.hears = capture(store, agent=GUIDE)(self._answer)

    def _answer(self, message: Message, conversation_id: str) -> list[Message] | None:
        """What it says, tool calls included; None if the message is not for it."""
        conversation = self._store.get_conversation(conversation_id)
        channel = {} if conversation is None else conversation.metadata
        options = {"agent_aliases": aliases_in(channel, GUIDE.id), "addressed_only_mode": "strict"}
        prompt = assemble_prompt(self._store, conversation_id, GUIDE.id, GUIDE.display_name, options)
        if message.id not in [one.message_id for one in prompt.report.addressed]:
            return None
        # The prompt has only what is for this agent. For all else that was said in the channel, there is the tool.
        search = conversation_search_tool(self._store, conversation_id)
        said: list[Message] = []
        while True:
            answer = model(to_openai_chat([*prompt.messages, *said]), [search.to_openai_chat()])
            said += from_openai_chat([answer])
            calls = said[-1].tool_uses
            if not calls:
                return said
            said += [tool(tool_result(call.id, search.run(call.input), name=call.name)) for call in calls]


def main(url: str) -> None:
    with HistoryStore(url, namespace="rooms") as store:
        store.create_conversation(Conversation("trips", metadata=CHANNEL))
        agent = RoomAgent(store)
        agent.hears(received(CHANNEL, {"id": "1", "user": "U1", "text": "The hotel is the Harbour Inn."}), "trips")
        agent.hears(received(CHANNEL, {"id": "2", "user": "U2", "text": "Lunch?"}), "trips")
        agent.hears(received(CHANNEL, {"id": "3", "user": "U2", "text": "<@U9> what was the hotel?"}), "trips")
        for message in store.get("trips"):
            who = message.participant.display_name if message.participant else message.role
            for call in message.tool_uses:
                print(f"{who} calls {call.name} with {call.input}")
            for result in message.tool_results:
                print(f"{who} gets {result.content.partition(',')[0]}")
            if message.role != "tool" and message.text:
                print(f"{who}: {message.text}")


if __name__ == "__main__":
    main(sys.argv[1])
