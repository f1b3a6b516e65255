"""The common part of commands that run a service: find it, give it its settings, show its start, report its errors.

Services are found by their entry points: this package imports none of them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import orjson
from pydantic import ValidationError

from understudy.calls.credentials import FIXES, authorization
from understudy.calls.http_client import Server, ServerProblemError, path_segment
from understudy.services.progress import BarDisplay, LogDisplay, RunningNode, RunningService, ServedGeneration, watch
from understudy.services.settings import settings_error, unknown_variables
from understudy.services.welcome import guarded_lines, url_of
from understudy.terminal.console import print_lines
from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.base.importing import without_collections
from understudy_shared.telemetry.logs import LogFormat, configure_logging

log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])

FIRST_REPLY_TIMEOUT_S = 30.0
"""Seconds for the first reply of a service that is ready. On a machine that is too busy, a warning is logged."""

MAX_EXAMPLES = 20
"""Number of stores for which the welcome asks for a key that exists."""

END_TIMEOUT_S = 2.0
"""Seconds for the end: a bar is taken from the terminal within a tenth of one; only a reply that hangs takes longer."""

Greeting = Callable[[str, Mapping[str, Any]], Sequence[str]]
"""A function from the URL of a ready service and its `/v1/stores` to the lines to print."""


class ServiceEntryPoint(Protocol):
    """The function of an entry point: it serves until interrupted."""

    def __call__(
        self, settings: dict[str, object], started: Callable[[RunningService], None] | None = None
    ) -> None: ...


def service_options(command: Command) -> Command:
    """Add --config, --log-format and --log-level."""
    options = (
        click.option(
            "--config", type=click.Path(exists=True, dir_okay=False), envvar="UNDERSTUDY_CONFIG", show_envvar=True,
            help="TOML file with settings, named as the flags with underscores.",
        ),
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", envvar="UNDERSTUDY_LOG_FORMAT",
            show_default=True, show_envvar=True, help="Logs go to stderr, a line per record.",
        ),
        click.option(
            "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
            default="INFO", envvar="UNDERSTUDY_LOG_LEVEL", show_default=True, show_envvar=True,
            help="Least level that is logged.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def prepare(*, config: str | None, log_format: LogFormat, log_level: str) -> None:
    """Configure logs and the file of settings, before the service is loaded."""
    configure_logging(log_format=log_format, level=log_level.upper())
    # Python shows deprecations to developers only; this one is for the operator who set the old name.
    warnings.filterwarnings("default", message=".*cache_max_bytes_buffering", category=DeprecationWarning)
    if config is not None:
        use_config_file(Path(config))
    for warning in unknown_variables(os.environ):
        log.warning("%s", warning, extra={"action": "unknown-variable"})


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


def find_service(name: str, *, extras: str) -> ServiceEntryPoint:
    """Load a service by its entry point, or say which extras to install."""
    found = [entry for entry in entry_points(group="understudy.services") if entry.name == name]
    missing = f"the service {name!r}"
    try:
        if found:
            with without_collections():
                service: ServiceEntryPoint = found[0].load()
            return service
    except ModuleNotFoundError as error:
        missing = str(error.name)
    raise MissingExtraError(f"{missing} is not installed", extras=extras)


class _ReadyOverHttp:
    """A service that is ready when /readyz of each of its processes says so, too: a node may wait for other nodes."""

    def __init__(self, service: RunningService, processes: Sequence[Server]) -> None:
        self._service = service
        self._processes = processes
        self.host = service.host

    @property
    def generation(self) -> ServedGeneration | None:
        return self._service.generation if isinstance(self._service, RunningNode) else None

    def not_ready(self) -> list[str]:
        """Return the reasons of the first process that is not ready."""
        reasons = self._service.not_ready()
        for process in self._processes:
            reasons = reasons or process.not_ready()
        return reasons


def add_keys(server: Server, document: Mapping[str, Any]) -> None:
    """Put a key that exists beside each store of `/v1/stores`, as `existing_key`, where the node finds one at once."""
    for store in document["stores"][:MAX_EXAMPLES]:
        try:
            found = orjson.loads(server.get(f"/internal/v1/stores/{path_segment(store['store'])}/key"))
        except UnderstudyError as error:
            log.debug("no example key: %s", error, extra={"action": "no-example"})
        else:
            store["existing_key"] = found["key"]


class Welcome:
    """A thread beside the service: shows how it starts, says what can be asked, and ends."""

    def __init__(self, greeting: Greeting, *, speaks: bool) -> None:
        self._greeting = greeting
        self._speaks = speaks
        self._on_terminal = speaks and sys.stderr.isatty()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, service: RunningService) -> None:
        """Begin to watch a service that has started."""
        self._thread = threading.Thread(target=self._run, args=(service,), name="welcome", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End after the service: give the terminal back as it was."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(END_TIMEOUT_S)

    def _run(self, service: RunningService) -> None:
        is_tls = bool(getattr(service, "is_tls", False))
        own_hosts = getattr(service, "own_hosts", [service.host])
        url, *own = [url_of(host, is_tls=is_tls) for host in (service.host, *own_hosts)]
        try:
            with ExitStack() as stack:
                server, *processes = [
                    stack.enter_context(Server(each, timeout_s=FIRST_REPLY_TIMEOUT_S, is_own=True))
                    for each in (url, *own)
                ]
                display = BarDisplay() if self._on_terminal else LogDisplay()
                if watch(_ReadyOverHttp(service, processes), display, self._stopping):
                    self._greet(url, _shown_stores(service, server))
        except UnderstudyError as error:
            if not self._stopping.is_set():
                log.warning("%s", error, extra={"action": "welcome-failed"})

    def _greet(self, url: str, document: Mapping[str, Any] | None) -> None:
        """Say that the service is ready, and what can be asked, if that was shown."""
        if not self._on_terminal:
            stores = {} if document is None else {"stores": len(document["stores"])}
            log.info("serving", extra={"action": "serving", "url": url, **stores})
        if self._speaks:
            print_lines(guarded_lines(url) if document is None else self._greeting(url, document))
            sys.stdout.flush()


def _shown_stores(service: RunningService, server: Server) -> dict[str, Any] | None:
    """Read `/v1/stores` with the key of this command; return None when the service wants one that is missing.

    Without a key it does not ask: the audit log of each start would begin with a refusal.
    """
    if getattr(service, "wants_keys", False) and not authorization(os.environ):
        return None
    try:
        document: dict[str, Any] = orjson.loads(server.get("/v1/stores"))
    except ServerProblemError as problem:
        if problem.slug in FIXES:
            return None
        raise
    if isinstance(service, RunningNode):
        add_keys(server, document)
    return document


def run_service(
    service: ServiceEntryPoint, settings: dict[str, object], *, greeting: Greeting, command: str, speaks: bool
) -> None:
    """Serve until a signal. Raises CommandError for what the user can fix."""
    welcome = Welcome(greeting, speaks=speaks)
    for stop in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell's background job begins with it ignored
        signal.signal(stop, signal.default_int_handler)
    try:
        service(settings, welcome.start)
    except ModuleNotFoundError as error:
        extras = command if command == "router" else "node"
        raise MissingExtraError(f"{error.name} is not installed", extras=extras) from None
    except KeyboardInterrupt:
        log.info("stopped", extra={"action": "stopped"})
        return
    except ValidationError as error:
        raise settings_error(error, command=command) from None
    except SettingsError as error:
        raise CommandError(error.what, where=error.where, fix=error.fix, exit_code=ExitCode.USAGE) from None
    finally:
        welcome.end()
    raise CommandError("the service ended by itself", fix="Its log says why", exit_code=ExitCode.REFUSED)
