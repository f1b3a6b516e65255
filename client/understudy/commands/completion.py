"""`understudy completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from understudy.terminal.exits import EXIT_CODES_HELP

_VARIABLE = "_UNDERSTUDY_COMPLETE"
"""click answers a shell that sets this variable; its name follows from the program's."""


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script for SHELL that completes the commands and options of understudy.

    \b
    Examples:
      eval "$(understudy completion bash)"                      # this shell; or add the line to ~/.bashrc
      eval "$(understudy completion zsh)"                       # or add the line to ~/.zshrc
      understudy completion fish > ~/.config/fish/completions/understudy.fish
    """
    root = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root.command, {}, "understudy", _VARIABLE).source())
