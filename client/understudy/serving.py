"""`understudy serve CHECKPOINT`: settings in, the service started, its restore shown, its errors told.

The service is found by its entry point: this package imports none of it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import tomllib
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import click
import orjson
from pydantic import ValidationError

from understudy.console import print_lines
from understudy.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy.http_client import Server
from understudy.progress import BarDisplay, LogDisplay, RunningNode, watch
from understudy.service_settings import given_settings, place_of, setting_options
from understudy.welcome import url_of, welcome_lines
from understudy_shared.errors import SettingsError, UnderstudyError
from understudy_shared.logs import LogFormat, configure_logging

log = logging.getLogger(__name__)

FIRST_REPLY_TIMEOUT_S = 30.0
"""The service was ready a moment ago; a machine that is this busy is told so by a warning, not by silence."""

END_TIMEOUT_S = 2.0
"""A bar is taken from the terminal within a tenth of a second; only a reply that hangs takes longer."""


class Service(Protocol):
    """What the entry point gives: serves until interrupted."""

    def __call__(self, settings: dict[str, object], started: Callable[[RunningNode], None] | None = None) -> None: ...


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("checkpoint", required=False)
@setting_options
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    envvar="UNDERSTUDY_CONFIG",
    show_envvar=True,
    help="TOML file with settings, named as the flags with underscores.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="UNDERSTUDY_LOG_FORMAT",
    show_default=True,
    show_envvar=True,
    help="Logs go to stderr, a line per record.",
)
@click.option(
    "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False), default="INFO",
    envvar="UNDERSTUDY_LOG_LEVEL", show_default=True, show_envvar=True, help="Least level that is logged.",
)  # fmt: skip
def serve(checkpoint: str | None, *, config: str | None, log_format: LogFormat, log_level: str, **flags: Any) -> None:
    """Follow the streaming query whose checkpoint is at CHECKPOINT (a path or a URL) and answer lookups over HTTP.

    Says when it is ready, with a curl to try for each store; logs go to stderr. It only reads the checkpoint. SIGINT
    and SIGTERM stop it in good order, with exit code 0.

    Every setting can be a flag, a variable (UNDERSTUDY_PORT for --port), or a line in the file of --config; a flag wins
    over a variable, a variable over the file. Sizes may have units of 1024: 64MiB, 10m.

    \b
    Examples:
      understudy serve /data/checkpoints/flights
      understudy serve s3://bucket/checkpoints/flights --port 8081 --statestore-cache-max-bytes 256MiB
      UNDERSTUDY_ALIASES=names.toml understudy serve /data/checkpoints/flights --log-format json
    """
    configure_logging(log_format=log_format, level=log_level.upper())
    # Python hides deprecations from everybody but developers; this one is for whoever set the old name.
    warnings.filterwarnings("default", message=".*cache_max_bytes_buffering", category=DeprecationWarning)
    if config is not None:
        use_config_file(Path(config))
    service = find_service()
    run_service(service, given_settings(checkpoint, flags), speaks=log_format == "text")


def use_config_file(path: Path) -> None:
    """Hand the file to the service, which reads it by this variable; a file that is not TOML is refused here."""
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise CommandError(
            f"the file of settings is not TOML ({error})",
            where=str(path),
            fix="Write lines such as: port = 8081",
            exit_code=ExitCode.USAGE,
        ) from None
    os.environ["UNDERSTUDY_CONFIG"] = str(path)


def find_service() -> Service:
    """The service's entry point, or which extra to install."""
    found = [entry for entry in entry_points(group="understudy.services") if entry.name == "serve"]
    missing = "the package that serves"
    try:
        if found:
            service: Service = found[0].load()
            return service
    except ModuleNotFoundError as error:
        missing = str(error.name)
    raise CommandError(
        f"{missing} is not installed", fix="pip install 'understudy[client,node]'", exit_code=ExitCode.REFUSED
    )


class Welcome:
    """A thread beside the service: shows the restore, says what can be asked, and ends."""

    def __init__(self, *, speaks: bool) -> None:
        self._speaks = speaks
        self._on_terminal = speaks and sys.stderr.isatty()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, node: RunningNode) -> None:
        """The service has started."""
        self._thread = threading.Thread(target=self._run, args=(node,), name="welcome", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The service has ended: give the terminal back as it was."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_TIMEOUT_S)

    def _run(self, node: RunningNode) -> None:
        if not watch(node, BarDisplay() if self._on_terminal else LogDisplay(), self._stopping):
            return
        url = url_of(node.host)
        try:
            with Server(url, timeout_s=FIRST_REPLY_TIMEOUT_S) as server:
                document = orjson.loads(server.get("/v1/stores"))
        except UnderstudyError as error:
            if not self._stopping.is_set():
                log.warning("%s", error, extra={"action": "welcome-failed"})
            return
        if not self._on_terminal:
            log.info("serving", extra={"action": "serving", "url": url, "stores": len(document["stores"])})
        if self._speaks:
            print_lines(welcome_lines(url, document))
            sys.stdout.flush()


def run_service(service: Service, settings: dict[str, object], *, speaks: bool) -> None:
    """Serve until a signal. Raises CommandError for what the user can fix."""
    welcome = Welcome(speaks=speaks)
    for stop in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell's background job begins with it ignored
        signal.signal(stop, signal.default_int_handler)
    try:
        service(settings, welcome.start)
    except KeyboardInterrupt:
        log.info("stopped", extra={"action": "stopped"})
        return
    except ValidationError as error:
        raise settings_error(error) from None
    except SettingsError as error:
        raise CommandError(error.what, where=error.where, fix=error.fix, exit_code=ExitCode.USAGE) from None
    finally:
        welcome.end()
    raise CommandError("the service ended by itself", fix="Its log says why", exit_code=ExitCode.REFUSED)


def settings_error(error: ValidationError) -> CommandError:
    """Every wrong setting, in one error."""
    problems = []
    for problem in error.errors(include_url=False):
        name = ".".join(map(str, problem["loc"])) or "settings"
        if name == "checkpoint" and problem["type"] == "missing":
            problems.append(f"checkpoint: none was given ({place_of(name)})")
        elif problem["type"] == "extra_forbidden":
            problems.append(f"{name}: there is no such setting")
        else:
            problems.append(f"{name}={problem['input']!r}: {problem['msg']} ({place_of(name)})")
    first, *others = problems
    return CommandError(
        first, notes=others, fix="understudy serve --help lists every setting", exit_code=ExitCode.USAGE
    )
