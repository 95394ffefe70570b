"""A part without the packages that it needs says what to install."""

import subprocess
import sys

#: A package that each module needs, and the extra that installs it.
NEEDED = {
    "integrations.agent_framework": ("agent_framework", "agent-framework"),
    "integrations.claude_agent_sdk": ("claude_agent_sdk", "claude-agent-sdk"),
    "integrations.google_adk": ("google.adk", "google-adk"),
    "integrations.langchain": ("langchain_core", "langchain"),
    "integrations.llama_index": ("llama_index", "llama-index"),
    "integrations.mcp_server": ("mcp", "mcp"),
    "integrations.openai_agents": ("agents", "openai-agents"),
    "integrations.pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "integrations.strands": ("strands", "strands"),
    "integrations.telemetry": ("opentelemetry", "opentelemetry"),
    "web": ("starlette", "web"),
}
CODE = f"""
import sys, redis_history, redis_history.formats, redis_history.integrations.importers
others = {{"pydantic", "openai", "uvicorn"}} | {{package for package, _ in {NEEDED}.values()}}
print(sorted(others & sys.modules.keys()))
from importlib import import_module
for module, (package, _) in {NEEDED}.items():
    sys.modules[package] = None
    try:
        import_module(f"redis_history.{{module}}")
    except redis_history.errors.MissingExtraError as error:
        print(error, isinstance(error, redis_history.errors.RedisHistoryError))
"""


def test_a_missing_package_is_reported_with_its_extra() -> None:
    """And the package itself imports none of them."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    imported, *errors = done.stdout.splitlines()
    assert imported == "[]"
    for error, (_, extra) in zip(errors, NEEDED.values(), strict=True):
        assert error.endswith(f"pip install 'redis_history[{extra}]' True")
