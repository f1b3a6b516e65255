"""`understudy serve`, `understudy node` and `understudy router`: settings in, a service run until a signal."""

from __future__ import annotations

from typing import Any

import click

from understudy.services.running import (
    find_service,
    node_lines,
    prepare,
    router_lines,
    run_service,
    service_options,
    welcome_lines,
)
from understudy.services.settings import NODE_FLAGS, ROUTER_FLAGS, SERVE_FLAGS, given_settings, setting_options
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy_shared.telemetry.logs import LogFormat


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("checkpoint", nargs=-1)
@setting_options(SERVE_FLAGS)
@service_options
def serve(
    checkpoint: tuple[str, ...], *, config: str | None, log_format: LogFormat, log_level: str, **flags: Any
) -> None:
    """Follow the streaming query whose checkpoint is at CHECKPOINT (a path or a URL) and answer lookups over HTTP.

    With several CHECKPOINTs, or with --applications FILE, one process serves all of these queries: each under the id
    that the file gives it, else under the last part of its location. A fault of one
    does not touch the others.

    Says when it is ready, with a curl to try for each store; logs go to stderr. It only reads the checkpoint. SIGINT
    and SIGTERM stop it in good order, with exit code 0.

    Every setting can be a flag, a variable (UNDERSTUDY_PORT for --port), or a line in the file of --config; a flag wins
    over a variable, a variable over the file. Sizes may have units of 1024: 64MiB, 10m.

    \b
    Examples:
      understudy serve /data/checkpoints/flights
      understudy serve s3://bucket/checkpoints/flights --port 8081 --statestore-cache-max-bytes 256MiB
      understudy serve /data/checkpoints/flights /data/checkpoints/orders
      understudy serve --applications applications.toml
      UNDERSTUDY_ALIASES=names.toml understudy serve /data/checkpoints/flights --log-format json
    """
    prepare(config=config, log_format=log_format, log_level=log_level)
    run_service(
        find_service("serve", extras="node"),
        given_settings(SERVE_FLAGS, flags, *checkpoint),
        greeting=welcome_lines,
        command="serve",
        speaks=log_format == "text",
    )


@click.command(epilog=EXIT_CODES_HELP)
@click.argument("checkpoint", required=False)
@setting_options(NODE_FLAGS)
@service_options
def node(checkpoint: str | None, *, config: str | None, log_format: LogFormat, log_level: str, **flags: Any) -> None:
    """Hold a share of the replicas of the query whose checkpoint is at CHECKPOINT, together with other nodes.

    Nodes of one application find each other through Redis or Valkey and share its tasks: each task is active on one
    node and standby on others. Routers ask them. Give a node the same --node-id and --data-dir when it is started
    again: it comes back quickly. SIGINT and SIGTERM stop it in good order, with exit code 0.

    A node uses one core for lookups: start more of them, each with a port and a --node-id of its own.

    With --applications FILE instead of CHECKPOINT, one process is a node of each application in the file, which is read
    again when it changes. With --checkpoint-root it is one of each query that announces itself and whose checkpoint
    lies below a root, too.

    Every setting can be a flag, a variable (UNDERSTUDY_REDIS for --redis), or a line in the file of --config; a flag
    wins over a variable, a variable over the file. Sizes may have units of 1024: 64MiB, 10m.

    \b
    Examples:
      understudy node --applications applications.toml --redis redis://127.0.0.1:6379/0
      understudy node --checkpoint-root s3://bucket/checkpoints --redis redis://bus:6379/0 --gossip-key-file gossip.key
      understudy node /data/checkpoints/flights --redis redis://127.0.0.1:6379/0
      understudy node /data/checkpoints/flights --redis unix:///run/valkey.sock --port 7102 --data-dir b
      understudy node s3://bucket/flights --redis redis://bus:6379/0 --host 0.0.0.0 --advertise-host node-1 --zone a
    """
    prepare(config=config, log_format=log_format, log_level=log_level)
    run_service(
        find_service("node", extras="node"),
        given_settings(NODE_FLAGS, flags, *filter(None, [checkpoint])),
        greeting=node_lines,
        command="node",
        speaks=log_format == "text",
    )


@click.command(epilog=EXIT_CODES_HELP)
@setting_options(ROUTER_FLAGS)
@service_options
def router(*, config: str | None, log_format: LogFormat, log_level: str, **flags: Any) -> None:
    """Answer lookups of the stores of an application, or of many, by asking the best of their nodes.

    Each key goes to its active replica, or to the least-lagged standby that the reader's bounds accept. A router keeps
    no state of its own: run as many as you like. SIGINT and SIGTERM stop it in good order, with exit code 0.

    With --applications instead of --application-id one process routes for all queries whose ids match, such as '*' or
    'orders-*,flights'. They come and go while it runs. GET /v1/applications lists them; paths that begin with
    /v1/applications/{application}/ name one.

    A router uses one core: start more of them behind a load balancer or a service.

    Every setting can be a flag, a variable (UNDERSTUDY_REDIS for --redis), or a line in the file of --config; a flag
    wins over a variable, a variable over the file.

    \b
    Examples:
      understudy router --application-id flights --redis redis://127.0.0.1:6379/0
      understudy router --application-id flights --redis unix:///run/valkey.sock --port 8081
      understudy router --applications 'orders-*,flights' --redis redis://127.0.0.1:6379/0
    """
    prepare(config=config, log_format=log_format, log_level=log_level)
    run_service(
        find_service("router", extras="router"),
        given_settings(ROUTER_FLAGS, flags),
        greeting=router_lines,
        command="router",
        speaks=log_format == "text",
    )
