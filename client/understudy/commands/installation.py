"""`understudy config` and `understudy doctor`: what is set here and by whom, and what is wrong, here or at a server."""

from __future__ import annotations

import os
import platform
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from shlex import quote
from typing import Any

import click
import orjson

from understudy.calls.credentials import trust_options
from understudy.calls.http_client import RemoteServer, ReportedProblemError
from understudy.calls.options import DEFAULT_TIMEOUT_S, application_option
from understudy.client.core.values import application_segment
from understudy.services.running import use_config_file
from understudy.services.settings import FLAGS_OF, InForce, given_settings, in_force, setting_options, unknown_variables
from understudy.terminal.console import Lines, Sheet, print_json, print_page, print_report
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import PACKAGE, MissingExtraError
from understudy_shared.base.texts import clipped, did_you_mean, named, printable
from understudy_shared.base.words import KeyPlacement


def _service(name: str) -> click.Command:
    """Make `understudy config NAME`: it takes the flags of the service."""
    table = FLAGS_OF[name]

    def show(*, config: str | None, as_json: bool, changed: bool, **flags: Any) -> None:
        file, path = _file(config)
        given = given_settings(table, flags, *filter(None, [flags.get("checkpoint")]))
        rows = in_force(table, given, os.environ, file, path)
        _print(name, [row for row in rows if row.source != "default" or not changed], as_json=as_json)
        known = [row.name for row in rows]
        unknown = [
            f"the file has {key}, which is not a setting. {did_you_mean(key, known)}"
            for key in file
            if key not in known
        ]
        for line in [*unknown, *unknown_variables(os.environ)]:
            click.echo(f"warning: {line.strip()}", err=True)

    show.__doc__ = f"""Show the settings that understudy {name} would have here with these flags, and who set them.

    A flag wins over a variable, a variable over the file of --config, and that over the default. Passwords are masked.
    Nothing is started, and values are not checked: the service does that.

    \b
    Examples:
      understudy config {name}
      understudy config {name} --changed --config {name}.toml
    """
    wrapped: Callable[..., Any] = setting_options(table)(show)
    if name != "router":
        wrapped = click.argument("checkpoint", required=False)(wrapped)
    options = (
        click.option(
            "--config", type=click.Path(exists=True, dir_okay=False), envvar="UNDERSTUDY_CONFIG", show_envvar=True,
            help="TOML file with settings, named as the flags with underscores.",
        ),
        click.option("--changed", is_flag=True, help="Leave out what has its default."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    )  # fmt: skip
    for option in reversed(options):
        wrapped = option(wrapped)
    return click.command(name, epilog=EXIT_CODES_HELP)(wrapped)


def _file(config: str | None) -> tuple[dict[str, Any], str]:
    if config is None:
        return {}, ""
    use_config_file(Path(config))
    return tomllib.loads(Path(config).read_text(encoding="utf-8")), config


def _print(name: str, rows: Sequence[InForce], *, as_json: bool) -> None:
    if as_json:
        settings = [row._asdict() for row in rows]
        print_json(orjson.dumps({"service": name, "settings": settings}))
    elif rows:
        cells = [(row.name, _setting_text(row.value), f"{row.source} {row.where}".strip()) for row in rows]
        print_page((Sheet(("setting", "value", "from"), cells),))
    else:
        print_page((Lines(["Everything has its default."]),))


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


@click.group(epilog=EXIT_CODES_HELP)
def config() -> None:
    """Show which settings of a service are in force here, and whether a flag, a variable or a file set them.

    \b
    Examples:
      understudy config node --changed
      understudy config serve /data/checkpoints/flights --port 8081 --json
    """


for _name in FLAGS_OF:
    config.add_command(_service(_name))


Report = dict[str, Any]

_OPEN = frozenset(("restoring", "serving", "idle"))
"""The states in which an application of a fleet has read its checkpoint."""


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("target", metavar="CHECKPOINT|URL")
@click.option("--timeout-s", type=click.FloatRange(min=0, min_open=True), default=DEFAULT_TIMEOUT_S, show_default=True,
              help="Seconds to wait for each reply of a server.")  # fmt: skip
@click.option("--aliases", type=click.Path(dir_okay=False, path_type=Path),
              help="File with names for the stores of a checkpoint, as `understudy serve` takes it.")  # fmt: skip
@application_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")
@trust_options
def doctor(target: str, *, timeout_s: float, aliases: Path | None, application: str | None, as_json: bool) -> None:
    """Examine a checkpoint, or a node or router at a URL: what is there, what is served, what is wrong, what to change.

    A checkpoint is a path or a URL of storage (s3://...); http:// and https:// name a server. It only reads. Of remote
    storage it also checks clock, credentials, rights, listing and the newest commit, each ok, warn or fail. It ends
    with 0 when nothing is wrong, also with hints, with 3 when something is, with 4 when the server cannot be reached.
    Of a fleet it shows which applications are not served; --application examines one.

    --json has what a bug report needs: also the versions of Understudy, Python and its packages, and the settings that
    variables and UNDERSTUDY_CONFIG set here. Passwords are masked; look through it before you send it. Run it where
    the service runs, and add its log.

    \b
    Examples:
      understudy doctor /data/checkpoints/flights
      understudy doctor /data/checkpoints/flights --aliases flights.toml
      understudy doctor s3://bucket/checkpoints/flights --json | jq .findings
      understudy doctor http://router-1:8080 --application orders
      UNDERSTUDY_API_KEY_FILE=operations.key understudy doctor https://router-1:8080
    """
    is_server = target.lower().startswith(("http://", "https://"))
    if is_server and aliases is not None:
        raise click.UsageError("--aliases is for a checkpoint: a server has its own names")
    report = _of_server(target, timeout_s, application) if is_server else _examine()(target, aliases)
    report["here"] = _here(os.environ)
    print_report(orjson.dumps(report), lambda shown: (Lines(list(report_lines(shown)), folds=True),), as_json=as_json)
    found = [*report["findings"], *report.get("checks", ())]
    wrong = [each for each in found if each["state"] in {"wrong", "fail"}]
    if wrong:
        raise CommandError(f"{printable(target)} has faults: {len(wrong)}", exit_code=ExitCode.REFUSED)


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts, then each check of storage and each finding with what to do (pure)."""
    lists = ("operators", "findings", "checks", "here")
    facts = {name: value for name, value in report.items() if name not in lists and value is not None}
    width = max(map(len, facts))
    for name, value in facts.items():
        yield f"  {name:{width}}  {_text(value)}"
    for each in report.get("operators", ()):
        stores = ", ".join(each["stores"]) or "not served"
        name = f"op{each['operator_id']}"
        yield f"  {name:{width}}  {each['operator']}, {each['partitions']} partitions: {stores}"
    yield ""
    for check in report.get("checks", ()):
        yield f"  {check['state']:5}  {check['check']}: {printable(check['what'])}"
        if check["fix"]:
            yield f"         do: {printable(check['fix'])}"
    for finding in report["findings"]:
        yield f"  {finding['state']:5}  {printable(finding['what'])}"
        if finding["fix"]:
            yield f"         do: {printable(finding['fix'])}"
    if not report["findings"] and all(each["state"] == "ok" for each in report.get("checks", ())):
        yield "  Nothing was found wrong."


def _text(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case [first, last]:
            return f"{first} to {last}"
        case _:
            return printable(str(value))


def _here(environ: Mapping[str, str]) -> Report:
    """Return what is installed and set here: each setting that is not the default, with what set it."""
    path = environ.get("UNDERSTUDY_CONFIG", "")
    unread, file = "", {}
    try:
        file = tomllib.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError) as error:
        unread = f"{path} cannot be used: {error}"
    settings = {
        service: {
            row.name: {"value": row.value, "from": f"{row.source} {row.where}".strip()}
            for row in in_force(table, {}, environ, file, path)
            if row.source != "default"
        }
        for service, table in FLAGS_OF.items()
    }
    return {
        "understudy": version(PACKAGE),
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(_packages())),
        "settings": settings,
        "unknown": [*([unread] if unread else []), *(line.strip() for line in unknown_variables(environ))],
    }


def _packages() -> Iterator[tuple[str, str]]:
    """Yield name and version of the installed packages that Understudy requires, with its extras."""
    for needed in requires(PACKAGE) or ():
        name = re.split(r"[^A-Za-z0-9._-]", needed, maxsplit=1)[0]
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _examine() -> Callable[[str, Path | None], Report]:
    """Load the node's part, by its entry point: the command line imports no service."""
    try:
        entry, *_ = entry_points(group="understudy.services", name="doctor")
        loaded: Callable[[str, Path | None], Report] = entry.load()
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", None) or "the service 'doctor'"
        raise MissingExtraError(f"{missing} is not installed", extras="node") from None
    return loaded


def _of_server(url: str, timeout_s: float, application: str | None) -> Report:
    """Ask a node or router about itself, or about one application of a fleet. Raises CommandError when it cannot be
    reached or trusted at all.
    """
    report: Report = {"server": url, "tls": url.lower().startswith("https://")}
    findings: list[dict[str, str]] = []
    if application is not None:
        report["application"] = application
    with RemoteServer(url, timeout_s=timeout_s, application=application) as server:
        server.get("/livez")
        reasons = server.not_ready()
        report["ready"] = not reasons
        findings += [
            _wrong(f"it is not ready: {reason}", 'See docs/operations.md, "Why a node is not ready"')
            for reason in reasons
        ]
        stores = _asked(server, "/v1/stores", "stores", findings)
        if stores:
            report["stores"] = ", ".join(dict.fromkeys(each["store"] for each in stores["stores"])) or "none"
            scattered = [each["store"] for each in stores["stores"] if each.get("placement") == KeyPlacement.SCATTERED]
            findings += [_scattered(scattered)] if scattered else []
            findings += [
                _wrong(f"{each.get('store') or each['operator']} is not served: {each['reason']}", "")
                for each in stores["not_served"]
            ]
        health = _asked(server, "/admin/v1/health", "health", findings)
        if health:
            report["health"] = health["headline"]
            findings += _of_indicators(health["indicators"])
            checkpoint = _asked(server, "/admin/v1/checkpoint", "checkpoint", findings)
            findings += _of_checkpoint(checkpoint, report)
        elif health is not None and application is None:  # a fleet has a health for each application
            applications = (_asked(server, "/v1/applications", "applications", findings) or {}).get("applications", [])
            states = Counter(each["state"] for each in applications)
            report["applications"] = ", ".join(f"{count} {state}" for state, count in states.most_common()) or "none"
            findings += _of_applications(url, applications)
            findings += _of_checkpoints(server, applications, report)
        release = _asked(server, "/openapi.json", "release", findings)
        if release:
            report["release"] = release["info"]["version"]
    if not report["tls"] and os.environ.get("UNDERSTUDY_API_KEY_FILE", os.environ.get("UNDERSTUDY_API_KEY")):
        findings.append({"state": "hint", "what": "the key travels in plain", "fix": "Use TLS (docs/security.md)"})
    return {**report, "findings": findings}


def _of_checkpoint(found: Report | None, report: Report) -> list[dict[str, str]]:
    """Return what keeps Spark from starting again from a checkpoint. The report says so where a server cannot know."""
    if found == {}:
        report["checkpoint"] = "not checked: a router does not read it; ask a node, understudy doctor http://NODE:PORT"
    findings: list[dict[str, str]] = (found or {}).get("findings", [])
    return findings


def _of_checkpoints(server: RemoteServer, applications: Sequence[Report], report: Report) -> Iterator[dict[str, str]]:
    """Yield the same for each open application of a fleet. The first answer that it cannot be had is the last call."""
    for each in applications:
        if each["state"] in _OPEN:
            refusals: list[dict[str, str]] = []
            path = f"/admin/v1/applications/{application_segment(each['application'])}/checkpoint"
            found = _asked(server, path, "checkpoint", refusals)
            yield from refusals
            for finding in _of_checkpoint(found, report):
                yield {**finding, "what": f"application {each['application']}: {finding['what']}"}
            if not found:
                return


def _of_indicators(indicators: Sequence[Report]) -> Iterator[dict[str, str]]:
    """Yield a finding for each indicator of a health that is not ok (pure)."""
    for each in indicators:
        if each["state"] != "ok":
            yield {
                "state": "wrong" if each["state"] in {"hurt", "unknown"} else "hint",
                "what": f"{each['name']}: {each['symptom']}",
                "fix": each["action"],
            }


def _of_applications(url: str, applications: Sequence[Report]) -> Iterator[dict[str, str]]:
    """Yield a finding for each reason why applications of a fleet are not served, or only in part (pure). Reasons that
    differ in the name of the application alone are one.
    """
    groups: dict[tuple[str, str], list[Report]] = {}
    for each in applications:
        if each["state"] != "serving" or each["reason"] is not None:
            reason = str(each["reason"]).replace(each["application"], "")
            groups.setdefault((each["state"], reason), []).append(each)
    for (state, _), (first, *others) in groups.items():
        names = [first["application"], *(each["application"] for each in others)]
        who = (
            f"{len(names)} applications ({named(map(clipped, names), 5)}) are"
            if others
            else f"application {names[0]} is"
        )
        yield {
            "state": "wrong" if state == "failed" else "hint",
            "what": f"{who} {state}: {first['reason']}",
            "fix": f"understudy doctor {url} --application {quote(names[0])}",
        }


def _scattered(stores: Sequence[str]) -> dict[str, str]:
    what = f"any partition may have a key of {', '.join(stores)}: each is asked for a key, and all must answer"
    fix = "Start the query on a new checkpoint where keys are looked up often (docs/troubleshooting.md)"
    return {"state": "hint", "what": what, "fix": fix}


def _asked(server: RemoteServer, path: str, what: str, findings: list[dict[str, str]]) -> Report | None:
    """Fetch a document; None with a finding if the server refuses, an empty one if it lacks the path."""
    try:
        document: Report = orjson.loads(server.get(path))
    except ReportedProblemError as problem:
        if problem.slug == "unknown-path":
            return {}
        findings.append(_wrong(f"it does not show its {what}: {problem.what}", problem.fix))
        return None
    except UnderstudyError as error:
        findings.append(_wrong(f"it does not show its {what}: {error.what}", error.fix))
        return None
    return document


def _wrong(what: str, fix: str) -> dict[str, str]:
    return {"state": "wrong", "what": what, "fix": fix}
