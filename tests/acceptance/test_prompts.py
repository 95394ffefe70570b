"""Prompts from a real server: one read, and order and pairs while eight agents write."""

from __future__ import annotations

from typing import Any

import pytest

from redis_history import (
    HistoryStore,
    Participant,
    PromptOptions,
    assemble_prompt,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.support.forks import Forked, barrier
from tests.support.prompts import holds_pairs
from tests.support.servers import RealServer, Start

AGENTS = 8
STEPS = 12


def write(url: str, namespace: str, number: int, together: Any) -> None:
    """An agent that calls tools; all agents give their calls the same ids, and write call and result one by one."""
    me = Participant("agent", f"agent-{number}", f"Agent {number}")
    with HistoryStore(url, namespace=namespace) as store:
        store.get("c", limit=1)
        together.wait()
        for step in range(STEPS):
            name = f"{number}-{step}"
            store.append("c", user(f"agent {number}, {step}?", id=f"{name}-ask", participant=Participant("user", "u")))
            calls = [tool_use(f"call_{step}_{k}", "find", {"of": number}) for k in range(2)]
            store.append("c", assistant(calls, id=f"{name}-call", participant=me))
            for k in (1, 0):
                result = tool_result(f"call_{step}_{k}", f"found by {number}")
                store.append("c", tool(result, id=f"{name}-result-{k}", participant=me))
            store.append("c", assistant(f"{step}: done", id=f"{name}-say", participant=me))


@pytest.mark.proves("prompts")
def test_order_and_pairs_hold_while_eight_agents_write(server: RealServer, namespace: str) -> None:
    together = barrier(AGENTS + 1)
    writers = [Forked(write, server.url, namespace, number, together) for number in range(AGENTS)]
    looked = 0
    with HistoryStore(server.url, namespace=namespace) as store:
        together.wait(120)
        while any(writer.running for writer in writers):
            found = assemble_prompt(store, "c", f"agent-{looked % AGENTS}", None, {"max_turns_to_load": 300})
            holds_pairs(found.messages)
            looked += 1
        for writer in writers:
            writer.result()
        assert looked > 0
        stored = store.get("c")
        positions = {message.id: message.position for message in stored}
        everything = PromptOptions(
            max_turns_to_load=10_000, token_budget=None, rolling_summary_threshold=None, addressed_only_mode=False
        )
        for number in range(AGENTS):
            found = assemble_prompt(store, "c", f"agent-{number}", f"Agent {number}", everything)
            holds_pairs(found.messages)
            mine = [message for message in found.messages if message.id.startswith(f"{number}-")]
            assert [message.id for message in mine] == [
                f"{number}-{step}-{what}"
                for step in range(STEPS)
                for what in ("ask", "call", "result-1", "result-0", "say")
            ]
            for message in mine:
                for part in message.tool_results:
                    assert part.content == f"found by {number}"
            order = [positions[message.id] for message in found.messages if not message.tool_results]
            assert order == sorted(order)
            # All texts of the others, without their tools.
            assert len(found.messages) == STEPS * (5 + 2 * (AGENTS - 1))
            assert found.report.counts == {"other_agent_tools": STEPS * 3 * (AGENTS - 1)}
            addressed = assemble_prompt(
                store, "c", f"agent-{number}", f"Agent {number}", {"max_turns_to_load": 10_000, "token_budget": None}
            )
            assert [message.id for message in addressed.messages] == [message.id for message in mine]
        assert len(stored) == AGENTS * STEPS * 5


@pytest.mark.proves("prompts")
def test_a_prompt_is_one_read(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client, server.client() as other:
        store.append_many("c", [user(str(n), scope="dm") for n in range(600)])
        other.ping()
        seen = []
        with client.monitor() as monitor:
            assemble_prompt(store, "c", "a", "A", {"max_turns_to_load": 600}, lambda messages, previous: "summary")
            assemble_prompt(store, "c", "a", "A", {"scope": "dm"})
            other.echo("that was it")
            for command in monitor.listen():
                seen.append(command["command"].split()[0])
                if seen[-1] == "ECHO":
                    break
    assert seen == ["ZRANGE", "ZRANGE", "ECHO"]
