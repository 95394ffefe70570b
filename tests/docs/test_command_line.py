"""docs/how-to/command-line.md: the fields of JSON, commands that can be typed, and the help of every command."""

import re
import runpy
import shlex
from typing import Any

import click
import pytest

from redis_history import Conversation, SearchHit, user
from redis_history.cli import commands
from redis_history.formats.json_form import to_json
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, rows, sections
from tests.support.commands import run
from tests.support.servers import RealServer

PAGE = DOCS / "how-to" / "command-line.md"
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "help"))
#: Lines of shell in the documentation that call the command.
EXAMPLES = [line for _, command in SCRIPT["commands"](commands.cli, "redis-history")
            for line in (command.epilog or "").splitlines() if "redis-history" in line]  # fmt: skip
TYPED = [line for page in PAGES for block in blocks(page) if block.language == "sh"
         for line in block.content.splitlines() if re.search(r"(^|[|(] ?|&& )redis-history ", line)]  # fmt: skip


def test_every_command_and_option_has_a_help_text() -> None:
    """From which `scripts/reference` makes the reference."""
    for path, command in SCRIPT["commands"](commands.cli, "redis-history"):
        assert command.help, path
        for option in command.params:
            assert isinstance(option, click.Argument) or getattr(option, "help", None), f"{path} {option.name}"


@pytest.mark.parametrize("line", [*TYPED, *EXAMPLES])
def test_commands_of_the_documentation_and_the_help_are_valid(line: str) -> None:
    inner = re.findall(r"\$\(([^)]*)\)", line)
    outer = re.sub(r"\$\([^)]*\)", "x", line.partition("  #")[0])
    for call in re.findall(r"redis-history [^|]*", "|".join((outer, *inner))):
        words = shlex.split(call.partition(" >")[0])[1:]
        if words in ([], ["--help"]) or "[" in call:
            continue
        context = commands.cli.make_context("redis-history", words, resilient_parsing=True)
        rest = [*context._protected_args, *context.args] if hasattr(context, "_protected_args") else context.args
        _, command, rest = commands.cli.resolve_command(context, rest)
        while isinstance(command, click.Group):
            _, command, rest = command.resolve_command(context, rest)
        command.make_parser(click.Context(command)).parse_args(rest)  # raises for an unknown option


def _documented(heading: str) -> set[str]:
    """Names in the first column of the table below this line of the section on JSON."""
    table = sections(PAGE)["JSON"].partition(heading)[2].partition("\n\n|")[2].partition("\n\n")[0]
    return {found for row in rows("|" + table) for found in re.findall(r"`(\w+)`", row[0])}


def test_the_fields_of_json() -> None:
    message = user("x")
    assert _documented("A conversation, of") == set(to_json(Conversation("c")))
    assert _documented("A message, of") == set(to_json(message))
    assert _documented("A hit, of") == set(to_json(SearchHit(message, 1.0, "c")))
    heads = "\n".join(line for line in sections(PAGE)["JSON"].splitlines() if line.endswith(":"))
    described = {*re.findall(r"`(\w+)`", heads), *_documented("Other commands")}
    with_json = {path.split()[1] for path, command in SCRIPT["commands"](commands.cli, "redis-history")
                 if any("--json" in option.opts for option in command.params)}  # fmt: skip
    assert described == {*with_json, "mcp"}


def test_the_checks_of_the_doctor(server: RealServer, namespace: str) -> None:
    documented = {
        found for row in rows(sections(PAGE)["Diagnose a server"]) for found in re.findall(r"`([\w ]+)`", row[0])
    }
    where = ("--url", server.url, "--namespace", namespace, "--json")
    done = run(*where, "doctor")
    assert {one["check"] for one in done.lines} | {"disk"} == documented


def test_the_exit_statuses() -> None:
    documented = {int(row[0]) for row in rows(sections(PAGE)["Exit status"]) if row[0].isdecimal()}
    names = ("DONE", "FAILED", "WRONG", "NO_SERVER", "INTERRUPTED", "NO_READER", "TERMINATED")
    assert documented == {getattr(commands, one) for one in names}
