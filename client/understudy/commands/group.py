"""The `understudy` command group. Command modules are imported when their command runs: `--help` stays quick.

`uvx understudy-spark serve`: a command that lacks packages, started again by uv with the extra that brings them.

Rule: only where uvx made this environment, for one command. An environment that was made to last gets no packages
that its owner did not install: there the error names the command that does it (decision 0084).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click

from understudy.terminal.exits import EXIT_CODES_HELP, INTERRUPTED, PIPE_CLOSED, exit_code_of, say_error
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import PACKAGE, MissingExtraError, find_links, requirement
from understudy_shared.base.processes import without_collections
from understudy_shared.base.texts import did_you_mean

_COMMANDS = {
    "demo": ("understudy.demo.command", "Run everything on this machine, on real data."),
    "serve": (".serving", "Follow a checkpoint and answer lookups, all in one process."),
    "node": (".serving", "Hold a share of the replicas, in a cluster."),
    "router": (".serving", "Answer lookups by asking the best node of a cluster."),
    "get": (".reading", "Look one key up, a word per key column."),
    "lookup": (".reading", "Look keys up, each written as JSON; many at once with --stdin."),
    "scan": (".scanning", "Print the rows of a store, all or those that match."),
    "count": (".scanning", "Count the rows of a store."),
    "windows": (".scanning", "Print the windows of a key, or its sessions, in a range of time."),
    "history": (".scanning", "Print what each version changed for a key."),
    "watch": (".watching", "Print the value of a key, and each version that changes it."),
    "changes": (".watching", "Print what each version of a store put or deleted."),
    "snapshot": (".snapshotting", "Lease one version of all stores, for reads that go on for a while."),
    "export": (".exporting", "Write all rows into a file, as Parquet, Arrow, CSV or lines of JSON."),
    "sql": ("understudy.sql.command", "Run SQL over stores, with DuckDB in this process, all at one version."),
    "explain": (".reading", "Show which nodes would be asked for a key, and why."),
    "stores": (".inspecting", "Show what can be asked: stores, key columns, value columns."),
    "applications": (".service_files", "Show the applications of a fleet, and change the file that names them."),
    "types": (".inspecting", "Print Python classes for a store's key, value and result."),
    "lag": (".inspecting", "Show how far every replica is behind the query."),
    "health": (".operating", "Show whether anything is wrong: who is hurt, why, what to do."),
    "drain": (".operating", "Move a node's tasks to other nodes before it is stopped."),
    "safe-to-stop": (".operating", "Say whether a node may be stopped now, and what would be lost."),
    "doctor": (".installation", "Examine a checkpoint or a server: what is wrong, and what to change."),
    "config": (".installation", "Show which settings of a service are in force, and who set them."),
    "keys": (".service_files", "Make, list and revoke the keys that services ask for."),
    "bench": (".benchmarking", "Load a server with lookups: rate, latency, age of the answers."),
    "completion": (".group", "Print a script that makes your shell complete commands and options."),
}
"""Command to module and short help, in the order of the help. A module holds its command under the command's name."""


STARTED_AGAIN = "_UNDERSTUDY_STARTED_AGAIN"
"""The variable that is set for the command that uv starts: what it lacks then is an error."""


def start_with_extras(extras: str) -> None:
    """Let uv take this process's place, with the extras; return at once where uvx did not start it."""
    if not is_by_uvx(os.environ, sys.prefix):
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = [*find_links(extras), "--from", requirement(extras, exactly=True)]
    command = uv_command(os.environ["UV"], wanted, version, sys.argv[1:])
    click.echo(f"the extra {extras} is missing: uv starts the command again with it", err=True)
    os.execve(command[0], command, {**os.environ, STARTED_AGAIN: "1"})  # noqa: S606  # uv named itself


def is_by_uvx(environ: Mapping[str, str], prefix: str) -> bool:
    """Whether uvx made the environment at `prefix` for this one command (pure).

    uv names itself in UV. `uv run` counts its depth, and an environment that is activated is somebody's own.
    """
    others = {"UV_RUN_RECURSION_DEPTH", STARTED_AGAIN}
    return "UV" in environ and not others & environ.keys() and environ.get("VIRTUAL_ENV") != prefix


def uv_command(uv: str, wanted: Sequence[str], version: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts `understudy` with these arguments, of what is wanted, by this Python (pure)."""
    return [uv, "tool", "run", "--python", version, *wanted, "understudy", *arguments]


class Commands(click.Group):
    """The command group that loads commands when they are needed, and turns our errors into lines and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = _COMMANDS.get(cmd_name)
        if found is None:
            return None
        with without_collections():
            command = getattr(import_module(found[0], __package__), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name[:1] != "-" and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, _COMMANDS) or "understudy --help lists the commands."
            raise click.UsageError(f"There is no command {name!r}. {hint.strip()}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except MissingExtraError as error:
            start_with_extras(error.extras)
            say_error(error)
            ctx.exit(exit_code_of(error))
        except UnderstudyError as error:
            say_error(error)
            ctx.exit(exit_code_of(error))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader of the output has enough. What is still buffered must go somewhere when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(PIPE_CLOSED)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES_HELP,
)
@click.version_option(package_name=PACKAGE)
def cli() -> None:
    """Ask a running Spark Structured Streaming query for its state.

    Understudy follows the query's checkpoint without a JVM, keeps every state store ready to be asked, and answers
    key lookups over HTTP. A lookup never waits for Spark, and every answer says how old it is.

    \b
    Examples:
      understudy demo
          everything on this machine, with real flights, until Ctrl-C
      understudy serve /data/checkpoints/flights
          follow a checkpoint; prints the stores and a curl for each
      understudy get aircraft N14228
          one key, with the value's fields and its age
      understudy lookup aircraft '["N14228"]' '{"tailnum": "N24211"}' --json
          several keys in one request, an answer per line

    Each command has more: understudy COMMAND --help. Your shell completes commands and options after:
    eval "$(understudy completion bash)"
    """


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
    from click.shell_completion import get_completion_class  # noqa: PLC0415  # no other command needs it

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "understudy", _VARIABLE).source())
