"""`redis-history completion`: completion of commands, options and ids in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from redis_history.cli._bash import Bash
from redis_history.cli.commands import cli, define

__all__ = ["command"]


@define("completion", shared=())
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(redis-history completion bash)"     in ~/.bashrc
    zsh:  eval "$(redis-history completion zsh)"      in ~/.zshrc
    fish: redis-history completion fish > ~/.config/fish/completions/redis-history.fish

    It completes commands, options and the ids of conversations.
    """
    made = Bash if shell == "bash" else get_completion_class(shell)
    assert made is not None  # noqa: S101 -- click.Choice allows only these shells
    click.echo(made(cli, {}, "redis-history", "_REDIS_HISTORY_COMPLETE").source())
