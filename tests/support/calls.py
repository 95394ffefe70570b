"""Random conversations of one provider, with all items that open or answer a pair, and a check of requests.

This module does not use `redis_history`, and defines the pairs independently.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

Item = dict[str, Any]
#: Items of the model, then items of the client, then items of the model that follow these, and so on.
Step = tuple[list[Item], ...]

_IMAGE = "data:image/png;base64,aaaa"
_DONE = {"status": "completed"}


def _responses(kind: str, k: str) -> Step:
    """A call and its output, as the Responses API and its clients write them."""
    own = {"call_id": k}
    match kind:
        case "function":
            return (
                [{"type": "function_call", **own, "name": "f", "arguments": "{}"}],
                [{"type": "function_call_output", **own, "output": "y"}],
                [],
            )
        case "custom":
            return (
                [{"type": "custom_tool_call", **own, "name": "f", "input": "x"}],
                [{"type": "custom_tool_call_output", **own, "output": "y"}],
                [],
            )
        case "computer":
            shot = {"type": "computer_screenshot", "image_url": _IMAGE}
            done = {"action": {"type": "screenshot"}, "pending_safety_checks": [], **_DONE}
            return (
                [{"type": "computer_call", "id": f"cu{k}", **own, **done}],
                [{"type": "computer_call_output", **own, "output": shot}],
                [],
            )
        case "shell":
            out = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            return (
                [{"type": "shell_call", "id": f"sh{k}", **own, "action": {"commands": ["ls"]}, **_DONE}],
                [{"type": "shell_call_output", **own, "output": [out]}],
                [],
            )
        case "patch":
            operation = {"type": "delete_file", "path": "a"}
            return (
                [{"type": "apply_patch_call", "id": f"ap{k}", **own, "operation": operation, **_DONE}],
                [{"type": "apply_patch_call_output", **own, "output": "ok", **_DONE}],
                [],
            )
        case "local shell":
            action = {"type": "exec", "command": ["ls"], "env": {}}
            return (
                [{"type": "local_shell_call", "id": f"ls{k}", **own, "action": action, **_DONE}],
                [{"type": "local_shell_call_output", "id": k, "output": "a"}],
                [],
            )
        case "tool search":
            more = {"execution": "client", **_DONE}
            return (
                [{"type": "tool_search_call", "id": f"ts{k}", **own, "arguments": {"q": 1}, **more}],
                [{"type": "tool_search_output", **own, "tools": [], **more}],
                [],
            )
        case "approval":
            return (
                [{"type": "mcp_approval_request", "id": k, "arguments": "{}", "name": "f", "server_label": "s"}],
                [{"type": "mcp_approval_response", "approval_request_id": k, "approve": True}],
                [],
            )
        case "hosted search":
            more = {"execution": "server", "call_id": None, **_DONE}
            return (
                [
                    {"type": "tool_search_call", "id": f"ts{k}", "arguments": {}, **more},
                    {"type": "tool_search_output", "id": f"to{k}", "tools": [], **more},
                ],
                [],
                [],
            )
        case "web search":
            search = {"type": "search", "query": "q"}
            return [{"type": "web_search_call", "id": f"ws{k}", "action": search, **_DONE}], [], []
        case _:
            caller = {"caller": {"type": "program", "caller_id": k}}
            rounds = [[item | caller for item in items] for n in "ab" for items in _responses("function", k + n)[:2]]
            rounds[0].insert(0, {"type": "program", "id": f"pg{k}", **own, "code": "f()", "fingerprint": "F"})
            rounds = rounds[:2] if kind == "program" else rounds
            return (*rounds, [{"type": "program_output", "id": f"po{k}", **own, "result": "2", **_DONE}])


def _anthropic(kind: str, k: str) -> Step:
    match kind:
        case "function":
            return (
                [{"type": "tool_use", "id": k, "name": "f", "input": {}}],
                [{"type": "tool_result", "tool_use_id": k, "content": "y"}],
                [],
            )
        case "web search":
            use = {"type": "server_tool_use", "id": k, "name": "web_search", "input": {"query": "q"}}
            return [use, {"type": "web_search_tool_result", "tool_use_id": k, "content": []}], [], []
        case _:
            use = {"type": "server_tool_use", "id": k, "name": "code_execution", "input": {"code": "f()"}}
            caller = {"caller": {"type": "code_execution_20250825", "tool_id": k}}
            content = {"type": "code_execution_result", "content": [], "return_code": 0, "stderr": "", "stdout": "2"}
            called = [{"type": "tool_use", "id": k + n, "name": "f", "input": {}, **caller} for n in "ab"]
            answered = [{"type": "tool_result", "tool_use_id": k + n, "content": "y"} for n in "ab"]
            end = [{"type": "code_execution_tool_result", "tool_use_id": k, "content": content}]
            if kind == "code":
                return [use, called[0]], answered[:1], end
            return [use, called[0]], answered[:1], called[1:], answered[1:], end


def _gemini(kind: str, k: str) -> Step:
    match kind:
        case "function":
            call, result = {"id": k, "name": "f", "args": {}}, {"id": k, "name": "f", "response": {"output": "y"}}
            return [{"function_call": call}], [{"function_response": result}], []
        case "hosted":
            call, result = {"id": k, "tool_type": "GOOGLE_SEARCH_WEB"}, {"id": k, "tool_type": "GOOGLE_SEARCH_WEB"}
            return [{"tool_call": call}, {"tool_response": result}], [], []
        case _:
            code = {"code": "1+1", "language": "PYTHON"}
            result = {"outcome": "OUTCOME_OK", "output": "2"}
            return [{"executable_code": code}, {"code_execution_result": result}], [], []


def _chat(kind: str, k: str) -> Step:
    call: Item = {"id": k, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    if kind == "custom":
        call = {"id": k, "type": "custom", "custom": {"name": "f", "input": "x"}}
    return [call], [{"role": "tool", "tool_call_id": k, "content": "y"}], []


#: For each provider, the function that makes a step, and the kinds of steps.
STEPS: dict[str, tuple[Callable[[str, str], Step], tuple[str, ...]]] = {
    "openai_responses": (
        _responses,
        (
            *("function", "custom", "computer", "shell", "patch", "local shell", "tool search", "approval"),
            *("hosted search", "web search", "program", "long program"),
        ),
    ),
    "anthropic": (_anthropic, ("function", "web search", "code", "long code")),
    "gemini": (_gemini, ("function", "hosted", "code")),
    "openai_chat": (_chat, ("function", "custom")),
    "mistral": (_chat, ("function",)),
}


def _thought(form: str, number: int) -> list[Item]:
    match form:
        case "openai_responses":
            return [{"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"E{number}"}]
        case "anthropic":
            return [{"type": "thinking", "thinking": "Hm.", "signature": f"c2ln{number}"}]
    return []


def _said(form: str, text: str) -> Item:
    match form:
        case "openai_responses":
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return {"type": "message", "id": f"m{text}", "role": "assistant", "content": content, **_DONE}
        case "gemini":
            return {"text": text}
    return {"type": "text", "text": text}


def _reply(form: str, parts: list[Item]) -> list[Item]:
    """Return the messages with these parts of the model."""
    match form:
        case "openai_responses":
            return parts
        case "gemini":
            calls = [part for part in parts if "function_call" in part]
            if calls:  # Gemini signs the first of parallel calls
                signed = calls[0] | {"thought_signature": "c2ln"}
                parts = [signed if part is calls[0] else part for part in parts]
            return [{"role": "model", "parts": parts}]
        case "anthropic":
            return [{"role": "assistant", "content": parts}]
    text = "".join(part["text"] for part in parts if part.get("type") == "text")
    calls = [part for part in parts if part.get("type") != "text"]
    return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]


def _answers(form: str, parts: list[Item]) -> list[Item]:
    match form:
        case "gemini":
            return [{"role": "user", "parts": parts}]
        case "anthropic":
            return [{"role": "user", "content": parts}]
    return parts


def _user(form: str, text: str) -> Item:
    return {"role": "user", "parts": [{"text": text}]} if form == "gemini" else {"role": "user", "content": text}


@st.composite
def conversations(draw: Any, form: str) -> list[Item]:
    """Turns with parallel calls of any kind; some calls or results are missing, some results late."""
    step, kinds = STEPS[form]
    numbers = itertools.count(1)
    items: list[Item] = []
    late: list[Item] = []
    for _ in range(draw(st.integers(1, 4))):
        items.append(_user(form, f"q{next(numbers)}"))
        for _ in range(draw(st.integers(0, 2))):
            made = [step(kind, f"k{next(numbers)}") for kind in draw(st.lists(st.sampled_from(kinds), max_size=3))]
            thoughts = _thought(form, next(numbers)) if draw(st.booleans()) else []
            before = [_said(form, f"a{next(numbers)}")] if draw(st.booleans()) else []
            calls = [one for opened, *_ in made for one in opened if draw(st.integers(0, 9))]
            if thoughts or before or calls:
                items += _reply(form, [*thoughts, *before, *calls])
            results = [one for _, given, *_ in made for one in given if draw(st.integers(0, 5))]
            results = draw(st.permutations(results))
            if draw(st.integers(0, 3)) == 0:
                items.append(_user(form, f"and{next(numbers)}"))
            if results and draw(st.integers(0, 3)) == 0:
                late += results[-1:]
                results = results[:-1]
            items += _answers(form, results) if results else []
            for number in range(2, max(map(len, made), default=0)):
                after = [one for rounds in made if number < len(rounds) for one in rounds[number]]
                after = [one for one in after if draw(st.integers(0, 9))]
                items += (_answers if number % 2 else _reply)(form, after) if after else []
            if draw(st.integers(0, 3)) == 0 and late:
                items += _answers(form, late)
                late = []
        if draw(st.booleans()):
            items += _reply(form, [_said(form, f"a{next(numbers)}")])
    return items


def opened_and_answered(form: str, items: Iterable[Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The calls and the answers in items, each with a name for its kind and its id, in order."""
    opened: list[tuple[str, str]] = []
    answered: list[tuple[str, str]] = []
    for part in _parts(form, items):
        kind, id_ = part.get("type"), part.get("call_id") or part.get("id")
        match form, kind:
            case "openai_responses", "mcp_approval_request":
                opened.append(("approval", id_))
            case "openai_responses", "mcp_approval_response":
                answered.append(("approval", part["approval_request_id"]))
            case "openai_responses", "tool_search_call" | "tool_search_output" if part.get("call_id") is None:
                (opened if kind == "tool_search_call" else answered).append(("hosted search", "-"))
            case "openai_responses", "tool_search_output":
                answered.append(("tool_search_call", id_))
            case "openai_responses", str() if kind.endswith("_output"):
                answered.append((f"{kind.removesuffix('_output')}", id_))
            case "openai_responses", str() if part.get("call_id"):
                opened.append((kind, id_))
            case "anthropic", str() if kind.endswith("tool_use"):
                opened.append(("", id_))
            case "anthropic", str() if kind.endswith("tool_result"):
                answered.append(("", part["tool_use_id"]))
            case "gemini", _:
                for name, other in (
                    ("function_call", "function_response"),
                    ("tool_call", "tool_response"),
                    ("executable_code", "code_execution_result"),
                ):
                    opened += [(name, part[name].get("id", "-"))] if name in part else []
                    answered += [(name, part[other].get("id", "-"))] if other in part else []
            case "openai_chat" | "mistral", _ if "tool_calls" in part or "tool_call_id" in part:
                opened += [("", call["id"]) for call in part.get("tool_calls", ())]
                answered += [("", part["tool_call_id"])] if "tool_call_id" in part else []
    return opened, answered


def _parts(form: str, items: Iterable[Any]) -> Iterable[Any]:
    for item in items:
        content = item.get("parts" if form == "gemini" else "content")
        if form in ("anthropic", "gemini"):
            yield from content if isinstance(content, list) else ()
        else:
            yield item


def alone(form: str, items: Sequence[Any]) -> list[Any]:
    """Return answers without a call before them."""
    opened, answered = opened_and_answered(form, items)
    return [one for one in answered if one not in opened or answered.count(one) > opened.count(one)]


def refused(form: str, items: Sequence[Any]) -> list[Any]:
    """Return the reasons to reject a request: split pairs, missing calls of code, lone reasoning, lost signatures."""
    opened, answered = opened_and_answered(form, items)
    wrong: list[Any] = [one for one in set(opened + answered) if opened.count(one) != answered.count(one)]
    here = {id_ for _, id_ in opened}
    for part in _parts(form, items):
        caller = part.get("caller") or {}
        code = caller.get("caller_id") or caller.get("tool_id")
        wrong += [part] if code and code not in here else []
    if form == "openai_responses":
        after = [*items[1:], {}]
        wrong += [
            item
            for item, other in zip(items, after, strict=True)
            if item.get("type") == "reasoning"
            and (other.get("role") in ("user", "system") or str(other.get("type", "_output")).endswith("_output"))
        ]
    if form == "anthropic":
        wrong += [
            item
            for item in items
            if item["role"] == "assistant" and {part["type"] for part in _parts(form, [item])} == {"thinking"}
        ]
    if form == "gemini":
        for item in items:
            calls = [part for part in item["parts"] if "function_call" in part]
            wrong += [item] if calls and "thought_signature" not in calls[0] else []
    return wrong
