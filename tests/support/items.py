"""Conversations with each kind of item that providers send, to test the effects of operations on them.

Each has one user turn before the item and two after it. If the item has a result, its text contains `SECRET`.
"""

import base64
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]
SECRET = "the code of the safe is 4711"
#: Bytes that look like nothing else, and their base64.
RAW = b"\x89PNG\r\n\x1a\n" + b"".join(hashlib.sha256(bytes([n])).digest() for n in range(96))
DATA = base64.b64encode(RAW).decode()
SAFE = base64.urlsafe_b64encode(RAW).decode()
MIME = base64.encodebytes(RAW).decode()
URL = f"data:image/png;base64,{DATA}"
SIGNATURE = base64.b64encode(b"s" + RAW[8:2000]).decode()
_DONE = {"status": "completed"}


class Case(NamedTuple):
    """A conversation in the form of a provider."""

    form: str
    items: list[Any]


def _responses(*turn: Json) -> Case:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SIGNATURE}
    end = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        **_DONE,
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }
    begin = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    last = [{"role": "user", "content": "Thanks, go on."}]
    return Case("openai_responses", [*begin, {"role": "user", "content": "Do it."}, thought, *turn, end, *last])


def _anthropic(*turns: list[Json]) -> Case:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
    first, *rest = turns
    roles = ["user", "assistant"]
    found = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    found += [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": [thought, *first]}]
    found += [{"role": roles[n % 2], "content": blocks} for n, blocks in enumerate(rest)]
    if found[-1]["role"] == "user":
        found.append({"role": "assistant", "content": "Done."})
    return Case("anthropic", [*found, {"role": "user", "content": "Thanks, go on."}])


def _gemini(*turns: list[Json]) -> Case:
    roles = ["model", "user"]
    found = [{"role": "user", "parts": [{"text": "Hello."}]}, {"role": "model", "parts": [{"text": "Hi."}]}]
    found += [{"role": "user", "parts": [{"text": "Do it."}]}]
    found += [{"role": roles[n % 2], "parts": parts} for n, parts in enumerate(turns)]
    if found[-1]["role"] == "user":
        found.append({"role": "model", "parts": [{"text": "Done."}]})
    return Case("gemini", [*found, {"role": "user", "parts": [{"text": "Thanks, go on."}]}])


def _chat(form: str, result: Any, *, custom: bool = False) -> Case:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    if custom:
        call = {"id": "abcdefghi", "type": "custom", "custom": {"name": "f", "input": "print(1)"}}
    return Case(
        form,
        [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "Do it."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": result},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "Thanks, go on."},
        ],
    )


def _cases() -> Iterator[tuple[str, Case]]:
    call = {"type": "function_call", "call_id": "k", "name": "f", "arguments": "{}"}
    shot = {"type": "computer_screenshot", "image_url": URL}
    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    out = {"stdout": SECRET, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    yield "function", _responses(call, {"type": "function_call_output", "call_id": "k", "output": SECRET})
    yield (
        "function with an image",
        _responses(
            call,
            {
                "type": "function_call_output",
                "call_id": "k",
                "output": [{"type": "input_text", "text": SECRET}, image],
            },
        ),
    )
    yield (
        "function with a file",
        _responses(
            call,
            {
                "type": "function_call_output",
                "call_id": "k",
                "output": [
                    {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}
                ],
            },
        ),
    )
    yield (
        "custom tool",
        _responses(
            {"type": "custom_tool_call", "call_id": "k", "name": "f", "input": "print(1)"},
            {"type": "custom_tool_call_output", "call_id": "k", "output": SECRET},
        ),
    )
    yield (
        "computer",
        _responses(
            {
                "type": "computer_call",
                "id": "cu",
                "call_id": "k",
                "action": {"type": "screenshot"},
                "pending_safety_checks": [{"id": "sc", "code": "malicious", "message": "careful"}],
                **_DONE,
            },
            {
                "type": "computer_call_output",
                "call_id": "k",
                "output": shot,
                "acknowledged_safety_checks": [{"id": "sc", "code": "malicious", "message": "careful"}],
            },
        ),
    )
    yield (
        "local shell",
        _responses(
            {
                "type": "local_shell_call",
                "id": "ls",
                "call_id": "k",
                "action": {"type": "exec", "command": ["ls"], "env": {}},
                **_DONE,
            },
            {"type": "local_shell_call_output", "id": "k", "output": SECRET},
        ),
    )
    yield (
        "shell",
        _responses(
            {"type": "shell_call", "id": "sh", "call_id": "k", "action": {"commands": ["ls"]}, **_DONE},
            {"type": "shell_call_output", "call_id": "k", "output": [out]},
        ),
    )
    yield (
        "apply_patch",
        _responses(
            {
                "type": "apply_patch_call",
                "id": "ap",
                "call_id": "k",
                **_DONE,
                "operation": {"type": "update_file", "path": "a", "diff": "@@ -1 +1 @@"},
            },
            {"type": "apply_patch_call_output", "call_id": "k", "status": "failed", "output": SECRET},
        ),
    )
    more = {"execution": "client", **_DONE}
    tool = {"type": "function", "name": "g", "description": SECRET, "parameters": {}, "strict": False}
    yield (
        "tool_search",
        _responses(
            {"type": "tool_search_call", "id": "ts", "call_id": "k", "arguments": {"q": 1}, **more},
            {"type": "tool_search_output", "call_id": "k", "tools": [tool], **more},
        ),
    )
    yield (
        "MCP approval",
        _responses(
            {"type": "mcp_approval_request", "id": "k", "arguments": "{}", "name": "f", "server_label": "s"},
            {"type": "mcp_approval_response", "approval_request_id": "k", "approve": False, "reason": SECRET},
        ),
    )
    yield (
        "program",
        _responses(
            {"type": "program", "id": "pg", "call_id": "k", "code": "f()", "fingerprint": "F"},
            {**call, "call_id": "k2", "caller": {"type": "program", "caller_id": "k"}},
            {
                "type": "function_call_output",
                "call_id": "k2",
                "output": "2",
                "caller": {"type": "program", "caller_id": "k"},
            },
            {"type": "program_output", "id": "po", "call_id": "k", "result": SECRET, **_DONE},
        ),
    )
    yield (
        "mcp_call",
        _responses(
            {
                "type": "mcp_call",
                "id": "m",
                "arguments": "{}",
                "name": "rows",
                "server_label": "s",
                "output": SECRET,
                "error": None,
            }
        ),
    )
    yield (
        "code interpreter",
        _responses(
            {
                "type": "code_interpreter_call",
                "id": "ci",
                "code": "print(1)",
                "container_id": "c",
                **_DONE,
                "outputs": [{"type": "logs", "logs": SECRET}, {"type": "image", "url": URL}],
            }
        ),
    )
    yield (
        "web search",
        _responses({"type": "web_search_call", "id": "ws", "action": {"type": "search", "query": SECRET}, **_DONE}),
    )
    yield (
        "file search",
        _responses(
            {
                "type": "file_search_call",
                "id": "fs",
                "queries": ["q"],
                **_DONE,
                "results": [{"file_id": "f", "filename": "a", "score": 0.5, "text": SECRET, "attributes": {}}],
            }
        ),
    )
    yield "image generation", _responses({"type": "image_generation_call", "id": "ig", "result": DATA, **_DONE})

    use = {"type": "tool_use", "id": "k", "name": "f", "input": {}}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    yield (
        "Anthropic: parallel calls",
        _anthropic(
            [use, {**use, "id": "k2"}],
            [
                {"type": "tool_result", "tool_use_id": "k2", "content": SECRET},
                {"type": "tool_result", "tool_use_id": "k", "content": [{"type": "text", "text": SECRET}, picture]},
            ],
        ),
    )
    yield (
        "Anthropic: result with a text of the user",
        _anthropic(
            [use],
            [{"type": "tool_result", "tool_use_id": "k", "content": SECRET}, {"type": "text", "text": "And be quick."}],
        ),
    )
    yield (
        "Anthropic: a document in a result",
        _anthropic(
            [use],
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "k",
                    "content": [
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
                        },
                        {
                            "type": "search_result",
                            "source": "s",
                            "title": "t",
                            "content": [{"type": "text", "text": SECRET}],
                        },
                    ],
                }
            ],
        ),
    )
    server = {"type": "server_tool_use", "id": "srvtoolu_1"}
    found = {"type": "web_search_result", "url": "https://x.test", "title": SECRET, "encrypted_content": SIGNATURE}
    yield (
        "Anthropic: web search",
        _anthropic(
            [
                {**server, "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
                {"type": "text", "text": "Found."},
            ]
        ),
    )
    yield (
        "Anthropic: web search with a caller",
        _anthropic(
            [
                {**server, "name": "web_search", "input": {"query": "q"}, "caller": {"type": "direct"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": [found],
                    "caller": {"type": "direct"},
                },
                {"type": "text", "text": "Found."},
            ]
        ),
    )
    yield (
        "Anthropic: a failed web search",
        _anthropic(
            [
                {**server, "name": "web_search", "input": {"query": "q"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
                },
                {"type": "text", "text": "None."},
            ]
        ),
    )
    page = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": SECRET}, "title": "t"}
    yield (
        "Anthropic: web fetch",
        _anthropic(
            [
                {**server, "name": "web_fetch", "input": {"url": "https://x.test"}},
                {
                    "type": "web_fetch_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {"type": "web_fetch_result", "url": "https://x.test", "content": page},
                },
                {"type": "text", "text": "Read."},
            ]
        ),
    )
    pdf = {**page, "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}}
    yield (
        "Anthropic: web fetch of a PDF",
        _anthropic(
            [
                {**server, "name": "web_fetch", "input": {"url": "https://x.test"}},
                {
                    "type": "web_fetch_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {"type": "web_fetch_result", "url": "https://x.test", "content": pdf},
                },
                {"type": "text", "text": "Read."},
            ]
        ),
    )
    ran = {"type": "code_execution_result", "content": [], "return_code": 0, "stderr": "", "stdout": SECRET}
    yield (
        "Anthropic: code execution",
        _anthropic(
            [
                {**server, "name": "code_execution", "input": {"code": "f()"}},
                {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": ran},
                {"type": "text", "text": "Ran."},
            ]
        ),
    )
    bash = {"type": "bash_code_execution_result", "content": [], "return_code": 0, "stderr": "", "stdout": SECRET}
    yield (
        "Anthropic: bash",
        _anthropic(
            [
                {**server, "name": "bash_code_execution", "input": {"command": "ls"}},
                {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": bash},
                {"type": "text", "text": "Ran."},
            ]
        ),
    )
    view = {"type": "text_editor_code_execution_view_result", "content": SECRET, "file_type": "text"}
    yield (
        "Anthropic: text editor",
        _anthropic(
            [
                {**server, "name": "text_editor_code_execution", "input": {"command": "view", "path": "a"}},
                {"type": "text_editor_code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": view},
                {"type": "text", "text": "Ran."},
            ]
        ),
    )
    yield (
        "Anthropic: code that calls a tool",
        _anthropic(
            [
                {**server, "name": "code_execution", "input": {"code": "f()"}},
                {**use, "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}},
            ],
            [{"type": "tool_result", "tool_use_id": "k", "content": SECRET}],
            [
                {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": ran},
                {"type": "text", "text": "Ran."},
            ],
        ),
    )
    yield (
        "Anthropic: MCP",
        _anthropic(
            [
                {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "rows", "server_name": "s", "input": {}},
                {
                    "type": "mcp_tool_result",
                    "tool_use_id": "mcptoolu_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": SECRET}],
                },
                {"type": "text", "text": "Rows."},
            ]
        ),
    )
    yield (
        "Anthropic: tool search",
        _anthropic(
            [
                {**server, "name": "tool_search_tool_bm25", "input": {"query": "q"}},
                {
                    "type": "tool_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": {
                        "type": "tool_search_tool_search_result",
                        "tool_references": [{"type": "tool_reference", "tool_name": "f"}],
                    },
                },
                use,
            ],
            [{"type": "tool_result", "tool_use_id": "k", "content": SECRET}],
        ),
    )

    code = {"executable_code": {"code": "1+1", "language": "PYTHON"}}
    yield (
        "Gemini: code execution",
        _gemini(
            [
                code,
                {"code_execution_result": {"outcome": "OUTCOME_OK", "output": SECRET}},
                {"inline_data": {"mime_type": "image/png", "data": DATA}},
                {"text": "2"},
            ]
        ),
    )
    yield (
        "Gemini: code execution in JSON",
        _gemini(
            [
                {"executableCode": {"code": "1+1", "language": "PYTHON", "id": "x"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": SECRET, "id": "x"}},
                {"inlineData": {"mimeType": "image/png", "data": SAFE}},
                {"text": "2", "thoughtSignature": SIGNATURE},
            ]
        ),
    )
    calls = [
        {"function_call": {"name": "f", "args": {}}, "thought_signature": SIGNATURE},
        {"function_call": {"name": "f", "args": {"b": 2}}},
    ]
    results: list[Json] = [
        {"function_response": {"name": "f", "response": {"output": SECRET}}},
        {"function_response": {"name": "f", "response": {"output": SECRET}}},
    ]
    yield "Gemini: parallel calls without ids", _gemini(calls, results)
    yield (
        "Gemini: images in a response",
        _gemini(
            [{"function_call": {"id": "k", "name": "f", "args": {}}, "thought_signature": SIGNATURE}],
            [
                {
                    "function_response": {
                        "id": "k",
                        "name": "f",
                        "response": {"output": SECRET},
                        "parts": [{"inline_data": {"mime_type": "image/png", "data": SAFE}}],
                    }
                }
            ],
        ),
    )
    yield (
        "Gemini: a search",
        _gemini(
            [
                {"tool_call": {"id": "k", "tool_type": "GOOGLE_SEARCH_WEB", "args": {"q": "q"}}},
                {"tool_response": {"id": "k", "tool_type": "GOOGLE_SEARCH_WEB", "response": {"found": SECRET}}},
                {"text": "Found."},
            ]
        ),
    )
    yield "chat: function", _chat("openai_chat", SECRET)
    yield "chat: custom tool", _chat("openai_chat", SECRET, custom=True)
    yield "chat: text blocks", _chat("openai_chat", [{"type": "text", "text": SECRET}])
    yield "Mistral: function", _chat("mistral", SECRET)
    yield (
        "Mistral: an image in a result",
        _chat("mistral", [{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": URL}]),
    )
    yield (
        "Anthropic: blank texts",
        _anthropic(
            [{"type": "text", "text": "\n\n"}, use, {"type": "text", "text": " ", "citations": None}],
            [{"type": "tool_result", "tool_use_id": "k", "content": [{"type": "text", "text": " "}]}],
        ),
    )


#: By a name for the kind of item.
CASES: dict[str, Case] = dict(_cases())


def sdk_objects(case: Case) -> list[Any]:
    """Return the items, as objects of the provider's SDK if they belong to a reply."""
    from pydantic import TypeAdapter, ValidationError  # each SDK is imported when it is asked first

    match case.form:
        case "anthropic":
            from anthropic.types.beta import BetaContentBlock

            block = TypeAdapter[Any](BetaContentBlock)
            return [
                {**item, "content": [block.validate_python(one) for one in item["content"]]}
                if item["role"] == "assistant" and isinstance(item["content"], list)
                else item
                for item in case.items
            ]
        case "openai_responses":
            from openai.types.responses import ResponseOutputItem

            output = TypeAdapter[Any](ResponseOutputItem)

            def object_of(item: Json) -> Any:
                try:
                    return output.validate_python(item)
                except ValidationError:
                    return item  # of a client

            return list(map(object_of, case.items))
        case "gemini":
            from google.genai.types import Content

            return list(map(Content.model_validate, case.items))
        case "openai_chat":
            from openai.types.chat import ChatCompletionMessage as Reply
        case _:
            from mistralai.client.models import AssistantMessage as Reply
    return [Reply.model_validate(item) if item["role"] == "assistant" else item for item in case.items]
