"""`understudy debug bundle`: versions, settings, health, lag, events, metrics and logs in one file, without secrets."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from understudy.calls.credentials import shown_credential
from understudy.calls.http_client import Server, server_url
from understudy.calls.options import ServerOptions, server_options
from understudy.debug import machine
from understudy.debug.archive import logs, new_archive
from understudy.debug.asking import DOCUMENTS, Entry, entries_of, folder_of
from understudy.debug.redaction import Redaction, known_secrets
from understudy.terminal.console import print_json, print_lines
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import printable

MAX_SERVICES = 64
_AT_ONCE = 8
Told = Callable[[str, int], None]


@click.group(epilog=EXIT_CODES_HELP)
def debug() -> None:
    """Gather what a bug report needs.

    \b
    Example:
      understudy debug bundle --url router-1:8080,node-1:7101 --log router.log
    """


@debug.command(epilog=EXIT_CODES_HELP)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The zip file to write; it must not exist.  [default: understudy-bundle-TIME.zip here]",
)
@click.option(
    "--log",
    "log_files",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A log to add, its last 8 MiB. May be given several times.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="UNDERSTUDY_CONFIG",
    show_envvar=True,
    help="The TOML file of settings of a service that runs here.",
)
@server_options
def bundle(*, output: Path | None, log_files: tuple[Path, ...], config: Path | None, options: ServerOptions) -> None:
    """Write one file for a bug report: what services say of themselves, and what is installed and set here.

    It asks each service of --url, unlike other commands, which ask one of them. A router tells of all its nodes; name
    nodes, too, if they are the trouble. Per service: release, probes, health, lag and events, nodes, history, leases,
    stores, metrics. A service that is away, hangs or is no Understudy service is a line in the file. Of a fleet it has
    what all applications share, and their states; --application names the one whose health, lag and rest it has.

    Settings are those of this place, by its variables and --config: run it where a service runs, as with
    kubectl exec, to have that service's. Values of keys are never asked for. Keys, tokens, passwords and signatures
    are replaced by ***, in documents, settings and logs alike; names of stores, hosts and paths are not. Look through
    the file before you send it: it is a zip file of text.

    It asks as operators do: with keys in force, UNDERSTUDY_API_KEY_FILE names one with the role monitor or admin.
    A document takes --timeout-s at most and 8 MiB, a service a minute. It ends with 0 when the file is written.

    \b
    Examples:
      understudy debug bundle
      understudy debug bundle --url router-1:8080,node-1:7101,node-2:7101 --log router.log --log node.log
      kubectl exec understudy-node-0 -- understudy debug bundle --url 127.0.0.1:7101 -o /tmp/b.zip
      UNDERSTUDY_API_KEY_FILE=operations.key understudy debug bundle --url https://router-1:8080 --json | jq .notes
    """
    servers = [Server(url, timeout_s=options.timeout_s, application=options.application) for url in _urls(options.url)]
    redaction = Redaction(known_secrets(os.environ, shown_credential(os.environ).key))
    path = output or Path(f"understudy-bundle-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    settings = _settings(config, redaction)
    with new_archive(path) as add:
        add("versions.json", orjson.dumps(machine.versions(), option=orjson.OPT_INDENT_2))
        add("settings.json", orjson.dumps(settings, option=orjson.OPT_INDENT_2))
        entries = []
        with _progress(len(servers) * len(DOCUMENTS) + len(log_files)) as advance:
            for entry in _gathered(servers, log_files, redaction, options.timeout_s, advance):
                if entry.content is not None:
                    add(entry.file, entry.content)
                entries.append(entry._replace(content=entry.content and b"..."))  # hold one service's at a time
        report = _report(path, entries, redaction)
        add("README.txt", "\n".join(_lines(report)).encode())
        add("bundle.json", orjson.dumps(report, option=orjson.OPT_INDENT_2))
    if options.as_json:
        print_json(orjson.dumps(report))
    else:
        print_lines(_lines({**report, "bytes": path.stat().st_size}))


def _urls(text: str) -> list[str]:
    """Return the servers to ask, each once."""
    urls = list(dict.fromkeys(server_url(each.strip()) for each in text.split(",")))
    if len(urls) > MAX_SERVICES:
        raise CommandError(
            f"{len(urls)} services are more than {MAX_SERVICES}", where="--url",
            fix="Make several bundles, or name routers only: they tell of their nodes", exit_code=ExitCode.USAGE,
        )  # fmt: skip
    return urls


def _settings(config: Path | None, redaction: Redaction) -> dict[str, Any]:
    """Return the settings that are in force here; a file that is not TOML is what the bundle says then."""
    try:
        return machine.settings(config, os.environ, redaction)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        return {"error": redaction.text(f"{config} cannot be used: {error}")}


def _gathered(
    servers: Sequence[Server], log_files: Sequence[Path], redaction: Redaction, timeout_s: float, told: Told
) -> Iterator[Entry]:
    """Yield all entries: the services', some services at once, then the logs."""

    def of_service(numbered: tuple[int, Server]) -> list[Entry]:
        number, server = numbered
        folder, found = folder_of(number, server.url), []
        try:
            with server:
                for entry in entries_of(server, folder, redaction, timeout_s):
                    told(entry.source, 1)
                    found.append(entry)
        except UnderstudyError as error:  # a key or a certificate that cannot be used any more
            found.append(Entry(folder, server.url, None, redaction.text(str(error))))
        told(server.url, len(DOCUMENTS) - len(found))
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for entries in pool.map(of_service, enumerate(servers, 1)):
            yield from entries
    for entry in logs(log_files, redaction):
        told(entry.source, 1)
        yield entry


def _report(path: Path, entries: Sequence[Entry], redaction: Redaction) -> dict[str, Any]:
    """Return what is in the bundle, and what is not, with the reason (pure)."""
    return {
        "bundle": str(path),
        "files": [
            {"file": each.file, "source": redaction.text(each.source), "took_ms": each.took_ms}
            for each in entries
            if each.content is not None
        ],
        "notes": [
            {"file": each.file, "source": redaction.text(each.source), "note": each.note}
            for each in entries
            if each.note
        ],
    }


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the report for people (pure)."""
    size = f", {report['bytes'] / 1000:,.0f} kB" if "bytes" in report else ""
    yield f"{report['bundle']}: {len(report['files']) + 4} files{size}"
    if report["notes"]:
        yield "What is missing or not whole:"
    for each in report["notes"]:
        yield f"  {printable(each['source'])}: {printable(each['note'])}"
    yield "Secrets were replaced by ***. Look through it before you send it."


@contextmanager
def _progress(total: int) -> Iterator[Told]:
    """Give the function that is called with what was fetched, and how much that is; on a terminal it moves a bar."""
    if not sys.stderr.isatty():
        yield lambda _source, _count: None
        return
    from rich import console, progress  # noqa: PLC0415  # slow to import

    columns = (progress.BarColumn(bar_width=30), progress.TextColumn("{task.description}", markup=False))
    with progress.Progress(*columns, console=console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task("asking", total=total)
        yield lambda source, count: bar.update(task, advance=count, description=printable(source))
