"""TLS as users of the command line meet it: services with certificates, and commands that ask them."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from click.testing import CliRunner
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import TASKS, cluster_router
from tests.support.services.certificates import Files, Signer, replace, uri
from tests.support.services.command_line import Serving, ask, serving
from tests.support.services.guarded import Keys
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return HandmadeCheckpoint(tmp_path_factory.mktemp("tls") / "counts", partitions=TASKS).create().add(1).path


def options_of(files: Files, prefix: str = "tls") -> list[str]:
    return [f"--{prefix}-cert-file", str(files.certificate), f"--{prefix}-key-file", str(files.key)]


@pytest.fixture(scope="module")
def served(checkpoint: Path, signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    files = signer.issue("serve")
    with serving([str(checkpoint), *options_of(files)], tmp_path_factory.mktemp("served")) as running:
        yield running


def test_serve_speaks_tls_and_says_where(served: Serving, signer: Signer) -> None:
    assert served.url.startswith("https://127.0.0.1:")
    trusting = {"UNDERSTUDY_URL": served.url, "UNDERSTUDY_CA_FILE": str(signer.file)}
    found = ask("get", "op0", WORDS[0], "--json", variables=trusting)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["found"] is True
    assert ask("stores", "--url", served.url, "--ca-file", str(signer.file)).returncode == 0


def test_who_does_not_trust_its_authority_or_speaks_in_plain_reads_what_to_do(served: Serving) -> None:
    untrusted = ask("stores", "--url", served.url)
    assert untrusted.returncode == 4
    assert "--ca-file" in untrusted.stderr
    plain = ask("stores", "--url", served.url.replace("https:", "http:"))
    assert plain.returncode == 2
    assert "Write https://" in plain.stderr


@pytest.mark.parametrize("command", ["serve", "node", "router"])
def test_options_that_do_not_fit_each_other_are_refused_at_the_start(
    command: str, checkpoint: Path, signer: Signer, tmp_path: Path
) -> None:
    bus = ["--redis", "redis://127.0.0.1:1"]
    place = {"serve": [str(checkpoint)], "node": [str(checkpoint), *bus], "router": ["--application-id", "a", *bus]}
    started = [command, *place[command], "--port", "0", "--data-dir", str(tmp_path)]
    files = signer.issue(f"wrong-{command}")
    trust = ["--peer-ca-file", str(signer.file)]
    for options, says in (
        (["--tls-key-file", str(files.key)], "--tls-cert-file"),
        (["--tls-cert-file", "/nowhere.pem", *trust], "/nowhere.pem"),
        ([*options_of(files), *trust], "spiffe://"),
        ([*options_of(files, "peer")], "--peer-ca-file"),
    ):
        refused = CliRunner().invoke(cli, [*started, *options])
        assert (refused.exit_code, says in refused.stderr) == (ExitCode.USAGE, True), refused.stderr


@pytest.mark.parametrize("is_tls", [True, False], ids=["TLS", "plain"])
def test_a_session_is_for_tls_alone_where_it_began_by_tls(
    module_redis: RedisServer, signer: Signer, tmp_path: Path, *, is_tls: bool
) -> None:
    keys, secret = Keys(tmp_path / "credentials.toml"), tmp_path / "secret"
    keys.add("ann", "monitor")
    secret.write_text("c" * 40)
    settings: dict[str, Any] = signer.issue("page").settings() if is_tls else {}
    with cluster_router(module_redis.url, credentials_file=keys.path, cluster_secret_file=secret, **settings) as router:
        place = f"127.0.0.1:{router.port}"
        client = (
            http.client.HTTPSConnection(place, timeout=LIMIT_S, context=signer.client())
            if is_tls
            else http.client.HTTPConnection(place, timeout=LIMIT_S)
        )
        kind = {"content-type": "application/x-www-form-urlencoded"}
        client.request("POST", "/admin/login", f"key={quote(keys['ann'])}", kind)
        reply = client.getresponse()
        reply.read()
        cookie, *attributes = reply.headers["set-cookie"].split("; ")
        assert reply.status == 303
        assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict", *(["Secure"] if is_tls else [])]
        client.request("GET", "/admin/v1/lag", headers={"cookie": cookie})
        assert client.getresponse().status == 200
        client.close()


# ---- a cluster


@pytest.mark.full
def test_nodes_and_routers_speak_tls_and_take_new_certificates(
    module_redis: RedisServer, checkpoint: Path, signer: Signer, tmp_path: Path
) -> None:
    names = {role: signer.issue(f"cli-{role}", uri(role, application="counts")) for role in ("node", "router")}
    readers, trust = signer.issue("cli-readers"), ["--peer-ca-file", str(signer.file)]
    both = ["--redis", module_redis.url, "--application-id", "counts", *trust]
    with ExitStack() as running:
        nodes = running.enter_context(
            serving(
                [str(checkpoint), *both, *options_of(names["node"])], tmp_path / "nodes", command="node", ready="at "
            )
        )
        shown = [*options_of(readers), *options_of(names["router"], "peer")]
        router = running.enter_context(serving([*both, *shown], tmp_path / "router", command="router"))
        asking = {"UNDERSTUDY_URL": router.url, "UNDERSTUDY_CA_FILE": str(signer.file)}
        assert router.url.startswith("https://")
        assert nodes.url.startswith("https://")
        for word in WORDS[:5]:
            found = ask("get", "op0", word, "--json", variables=asking)
            assert (found.returncode, json.loads(found.stdout)["found"]) == (0, True), found.stderr
        assert ask("get", "op0", WORDS[0], "--url", nodes.url, "--ca-file", str(signer.file)).returncode != 0
        before = serials(router.url, signer)
        replace(readers, signer.issue("cli-readers-later"))
        wait_until(lambda: not before & serials(router.url, signer), what="new certificates", limit_s=LIMIT_S)
        assert ask("stores", variables=asking).returncode == 0
        for service in (router, nodes):
            assert service.stop() == 0
            assert "Traceback" not in service.errors


def serials(url: str, signer: Signer) -> set[bytes]:
    """The certificates that a port shows on twenty connections."""
    place = urlsplit(url)
    found = set()
    for _ in range(20):
        with (
            socket.create_connection((place.hostname or "", place.port or 0), LIMIT_S) as plain,
            signer.client().wrap_socket(plain, server_hostname=place.hostname) as connection,
        ):
            found.add(connection.getpeercert(binary_form=True) or b"")
    return found
