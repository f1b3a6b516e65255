"""The common part of commands that run a service: find it, give it its settings, show its start, welcome its users.

Services are found by their entry points, and known by the Protocols below: this package imports none of them. The
progress of a restore is a bar on a terminal, else a log line per change.
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
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote

import click
import orjson
from pydantic import ValidationError

from understudy.calls.credentials import FIXES, authorization
from understudy.calls.http_client import RemoteServer, ReportedProblemError, path_segment
from understudy.services.settings import settings_error, unknown_variables
from understudy.terminal.console import print_lines
from understudy.terminal.exits import CommandError, ExitCode
from understudy.terminal.reports import not_served_lines
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.base.processes import without_collections
from understudy_shared.base.texts import printable
from understudy_shared.base.words import HostInfo, ReplicaState
from understudy_shared.telemetry.logs import LogFormat, configure_logging

MAX_EXAMPLES = 20
"""Number of stores for which a welcome has an example with an existing key."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # recognised, not listened on


def url_of(host: HostInfo, *, is_tls: bool = False) -> str:
    """Return where this machine reaches a service; one that listens everywhere is reached at loopback."""
    name = _WILDCARDS.get(host.host, host.host)
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{name}]:{host.port}" if ":" in name else f"{scheme}://{name}:{host.port}"


def welcome_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    """Return the welcome of `understudy serve`; `document` is the answer of `/v1/stores`."""
    lag = _state_command(document)
    return [
        f"Serving at {url}",
        "",
        *_store_lines(url, document),
        "",
        f"Try: {url}/ in a browser; understudy stores --url {url}; {lag} --url {url}. Ctrl-C stops.",
    ]


def router_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    """Return the welcome of `understudy router`."""
    lag = _state_command(document, " --watch")
    return [
        f"Routing at {url}",
        "",
        *_store_lines(url, document),
        "",
        f"Try: {lag} --url {url}; understudy explain STORE KEY --url {url}. Ctrl-C stops.",
    ]


def _state_command(document: Mapping[str, Any], watch: str = "") -> str:
    """Return the command that shows how fresh all is: of a process of many applications, the list of them."""
    return "understudy applications list" if "unknown" in document else f"understudy lag{watch}"


def node_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    """Return the welcome of `understudy node`: it holds only a share, so readers should ask a router."""
    names = ", ".join(printable(store["store"]) for store in document["stores"]) or "no store"
    return [
        f"Node ready at {url}",
        "",
        f"  stores: {names}",
        *(f"  {line}" for line in not_served_lines(document["not_served"])),
        "",
        f"Try: {_state_command(document)} --url {url}; ask keys at a router: understudy router --help. Ctrl-C stops.",
    ]


def guarded_lines(url: str) -> list[str]:
    """Return the welcome of a service that asks for keys, when this command has no key: readers have theirs."""
    return [
        f"Ready at {url}, for those who have a key",
        "",
        f"Try: UNDERSTUDY_API_KEY_FILE=FILE understudy stores --url {url}; understudy keys makes keys. Ctrl-C stops.",
    ]


def example_target(store: Mapping[str, Any]) -> str:
    """Return a lookup of a key that exists, else of the schema's example: the path form where it is possible."""
    application = store.get("application")
    root = "/v1" if application is None else f"/v1/applications/{path_segment(application)}"
    path = f"{root}/stores/{path_segment(store['store'])}"
    existing = store.get("existing_key")
    examples = [column["example"] for column in store["key"]] if existing is None else list(existing.values())
    segments = _segments(examples)
    if segments:
        return "/".join([path, "keys", *map(path_segment, segments)])
    return f"{path}/lookup?key={quote(orjson.dumps(examples), safe='')}"


def _store_lines(url: str, document: Mapping[str, Any]) -> list[str]:
    stores = document["stores"]
    lines = []
    for store in stores[:MAX_EXAMPLES]:
        columns = ", ".join(f"{printable(column['name'])} {column['type']}" for column in store["key"]) or "no columns"
        lines += [
            f"  {printable(store['store'])}  ({printable(store['operator'])}, {store['partitions']} partitions)",
            f"    key: {columns}",
            f"    curl '{url}{example_target(store)}'{'' if 'existing_key' in store else '  # with a key of yours'}",
        ]
    if not stores:
        lines.append("  There is no store to ask.")
    if len(stores) > MAX_EXAMPLES:
        lines.append(f"  and {len(stores) - MAX_EXAMPLES} more stores: understudy stores --url {url}")
    return lines + [f"  {line}" for line in not_served_lines(document["not_served"])]


def _segments(examples: list[Any]) -> list[str] | None:
    """Return a path segment per column, two for a window; None when a column's value does not fit into segments."""
    segments: list[str] = []
    for example in examples:
        if isinstance(example, dict) and list(example) == ["start", "end"]:
            segments += map(str, example.values())
        elif isinstance(example, str) and example:
            segments.append(example)
        elif isinstance(example, bool | int | float):
            segments.append(orjson.dumps(example).decode())
        else:
            return None
    return segments


LOOK_EVERY_S = 0.1


class RunningService(Protocol):
    """The interface that every started service shows of itself."""

    @property
    def host(self) -> HostInfo: ...
    def not_ready(self) -> list[str]: ...


@runtime_checkable
class RunningNode(RunningService, Protocol):
    """A service that restores: `generation`, None at first, has `replicas`, each with task, state, view and target."""

    @property
    def generation(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """One task: `version` is None until it can be asked; `target` is the newest version there is."""

    state: ReplicaState
    version: int | None
    target: int

    @property
    def versions_behind(self) -> int:
        return max(0, self.target - (self.version or 0))


@dataclass(frozen=True, slots=True)
class ServiceProgress:
    """All tasks at one moment, and why the service is not ready; no reasons: it is."""

    tasks: Mapping[str, TaskProgress] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def restored(self) -> int:
        return sum(task.version is not None for task in self.tasks.values())

    @property
    def versions_behind(self) -> int:
        """The lag of the slowest task in versions."""
        return max((task.versions_behind for task in self.tasks.values()), default=0)


def observe(service: RunningService, server: RemoteServer) -> ServiceProgress:
    """Read the service once. It is ready when its /readyz says so, too: a node may wait for other nodes."""
    # First: a task that is restored after it makes the next reading ready.
    reasons = tuple(service.not_ready() or server.not_ready())
    generation = service.generation if isinstance(service, RunningNode) else None
    tasks = {}
    for replica in generation.replicas if generation is not None else ():
        version = None if replica.view is None else replica.view.version
        tasks[str(replica.task)] = TaskProgress(replica.state, version, replica.target)
    return ServiceProgress(tasks, reasons)


class LogDisplay:
    """A log line for each change of a task's state, and for each new reason why there are no tasks yet."""

    def __init__(self) -> None:
        self._last = ServiceProgress()

    def show(self, progress: ServiceProgress) -> None:
        for name, task in progress.tasks.items():
            old = self._last.tasks.get(name)
            if old is None or (old.state, old.version is None) != (task.state, task.version is None):
                figures = {"version": task.version, "versions_behind": task.versions_behind}
                log.info("%s is %s", name, task.state, extra={"action": "task-state", **figures})
        if progress.reasons and not progress.tasks and progress.reasons != self._last.reasons:
            log.info("waiting: %s", "; ".join(progress.reasons), extra={"action": "waiting"})
        self._last = progress


class BarDisplay:
    """A bar on the terminal, gone when it is closed."""

    def __init__(self) -> None:
        from rich import console as rich_console  # noqa: PLC0415  # slow to import, and --help of a service has no bar
        from rich import progress as bars  # noqa: PLC0415

        self._progress = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=30),
            bars.TextColumn("{task.fields[figures]}", markup=False),
            bars.TimeElapsedColumn(),
            console=rich_console.Console(stderr=True),
            transient=True,
        )
        self._bar = self._progress.add_task("starting", total=None, figures="")

    def __enter__(self) -> BarDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: ServiceProgress) -> None:
        total = len(progress.tasks)
        waiting = "; ".join(progress.reasons) if not total else ""
        figures = f"{progress.restored}/{total} tasks, {progress.versions_behind} versions behind" if total else ""
        self._progress.update(
            self._bar,
            description=f"waiting: {printable(waiting)}" if waiting else "restoring",
            total=total or None,
            completed=progress.restored,
            figures=figures,
        )


def watch(
    service: RunningService, server: RemoteServer, display: LogDisplay | BarDisplay, stopping: threading.Event
) -> bool:
    """Show the progress until the service is ready (True) or `stopping` is set (False)."""
    while True:
        progress = observe(service, server)
        display.show(progress)
        if not progress.reasons:
            return True
        if stopping.wait(LOOK_EVERY_S):
            return False


log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])

FIRST_REPLY_TIMEOUT_S = 30.0
"""Seconds for the first reply of a service that is ready. On a machine that is too busy, a warning is logged."""

END_TIMEOUT_S = 2.0
"""Seconds for the end: a bar is taken from the terminal within a tenth of one; only a reply that hangs takes longer."""

Greeting = Callable[[str, Mapping[str, Any]], Sequence[str]]
"""A function from the URL of a ready service and its `/v1/stores` to the lines to print."""

ServiceEntryPoint = Callable[[dict[str, object], Callable[[RunningService], None]], None]
"""The function of an entry point: it serves with settings until interrupted, and says when it has started."""


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


def add_keys(server: RemoteServer, document: Mapping[str, Any]) -> None:
    """Add to each store of `/v1/stores` a key that exists, as `existing_key`, if the node finds one at once."""
    for store in document["stores"][:MAX_EXAMPLES]:
        try:
            found = orjson.loads(server.get(f"/internal/v1/stores/{path_segment(store['store'])}/key"))
        except UnderstudyError as error:
            log.debug("no example key: %s", error, extra={"action": "no-example"})
        else:
            store["existing_key"] = found["key"]


class Welcome:
    """A thread next to the service: it shows how it starts, says what can be asked, and ends."""

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
        url = url_of(service.host, is_tls=is_tls)
        try:
            with RemoteServer(url, timeout_s=FIRST_REPLY_TIMEOUT_S, is_own=True) as server:
                with BarDisplay() if self._on_terminal else nullcontext(LogDisplay()) as display:
                    is_ready = watch(service, server, display, self._stopping)
                if is_ready:
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


def _shown_stores(service: RunningService, server: RemoteServer) -> dict[str, Any] | None:
    """Read `/v1/stores` with the key of this command; return None when the service wants one that is missing.

    Without a key it does not ask: the audit log of each start would begin with a refusal.
    """
    if getattr(service, "wants_keys", False) and not authorization(os.environ):
        return None
    try:
        document: dict[str, Any] = orjson.loads(server.get("/v1/stores"))
    except ReportedProblemError as problem:
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
