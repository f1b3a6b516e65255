"""The cost of authentication for a lookup: services that need credentials beside services that do not, in turns.

The guarded services are asked with an API key, and with a token (JWT, RS256, twenty groups) that they know already;
`unread` is the same token, sent to services without authentication: the cost of its bytes for a server that ignores
them. Certificates (mutual TLS 1.3) are between a router and a node: readers ask that router in plain, so that `hop`,
the CPU of both, differs by the hop alone.

    python -m benchmarks.auth [--keys 100000] [--rounds 5] [--seconds 3]

A node and a router of each kind follow the same checkpoint. The measured service has a core to itself, the load and the
other services share the other. Ratios are of medians: CPU per lookup is the one to trust on a machine that others use.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.load import WARM_UP_S, run_load
from benchmarks.servers import CLUSTER_NODE, LOAD_CORE, ROUTER, SERVER_CORE, Server, pin_load, server
from understudy.demo.local_redis import local_redis
from understudy_shared.auth.credentials import add_key
from understudy_shared.auth.presented import new_key

SAMPLED_KEYS = 1_000
START_LIMIT_S = 60.0
GOALS = {"key": 0.05, "token": 0.1, "mtls": 0.1}
"""The part of a lookup that a credential may cost, by its kind."""

HOPS = ("open", "mtls")
"""The kinds whose hop is measured: in plain, and by mutual TLS."""
CERTIFICATES = Path(__file__).parent.parent / "deploy" / "compose" / "certificates.sh"

ISSUER = "https://login.example.com/realms/data"
LIFETIME_S = 24 * 3600


class Deployed(NamedTuple):
    """The environment of a node and of its router. Clients call the node by `tls`; None: it speaks plain HTTP."""

    node: Mapping[str, str]
    router: Mapping[str, str]
    tls: ssl.SSLContext | None = None


class Round(NamedTuple):
    per_second: float
    cpu_us: float


@dataclass(slots=True)
class Subject:
    """A server, and the requests that it is sent."""

    name: str
    kind: str
    """`open`, or the kind of the credential that it is shown; `unread` for one that it does not ask for."""
    server: Server
    requests: Sequence[bytes]
    behind: Sequence[Server] = ()
    """Servers whose CPU counts, too."""
    rounds: list[Round] = field(default_factory=list)

    def cpu_s(self) -> float:
        return sum(each.cpu_s() for each in (self.server, *self.behind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    pin_load()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder, ExitStack() as running:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        subjects = list(started(checkpoint, Path(folder), running))
        for _ in range(options.rounds):
            for subject in subjects:
                subject.rounds.append(measured(subject, subjects, options.seconds))
    for what in ("node", "router", "hop"):
        of_one = [subject for subject in subjects if subject.name == what]
        report(of_one)


def started(checkpoint: BigCheckpoint, folder: Path, running: ExitStack) -> Iterator[Subject]:
    """Start a node and a router without authentication, those that need a credential, with one of each kind, and those
    that show each other certificates.
    """
    key, credentials, secret = new_key(), folder / "credentials.toml", folder / "secret"
    token = issued(folder / "keys.json", credentials)
    add_key(credentials, key, principal="bench", roles=["reader"], now=datetime.now(UTC), expires_at=None)
    secret.write_text(new_key().text)
    guarded = {"UNDERSTUDY_CREDENTIALS_FILE": str(credentials), "UNDERSTUDY_CLUSTER_SECRET_FILE": str(secret)}
    names = [checkpoint.key(number) for number in random.Random(0).sample(range(checkpoint.keys), SAMPLED_KEYS)]
    certificates = issued_certificates(folder / "certificates")
    for deployed, kinds in (
        (Deployed({}, {}), {"open": "", "unread": token}),
        (Deployed(guarded, guarded), {"key": key.text, "token": token}),
        (certificates, {"mtls": ""}),
    ):
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {LOAD_CORE})
        arguments = (str(checkpoint.path), str(folder / f"data-{min(kinds)}"), bus.url)
        node = running.enter_context(
            server(CLUSTER_NODE, *arguments, ready_path="/livez", env=deployed.node, tls=deployed.tls)
        )
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez", env=deployed.router))
        for kind, credential in kinds.items():
            shown = f"Bearer {credential}" if credential else ""
            line = f"authorization: {shown}\r\n" if shown else ""
            requests = [f"GET /v1/stores/op0/keys/{name} HTTP/1.1\r\nhost: b\r\n{line}\r\n".encode() for name in names]
            asked = [("node", node), ("router", router)] if deployed.tls is None else []
            for name, each in asked:
                wait_for(each, f"/v1/stores/op0/keys/{names[0]}", shown)
                yield Subject(name, kind, each, requests)
            if kind in HOPS:
                wait_for(router, f"/v1/stores/op0/keys/{names[0]}", shown)
                yield Subject("hop", kind, router, requests, [node])


def issued_certificates(folder: Path) -> Deployed:
    """Issue certificates for a router and a node that show them to each other. Readers ask the router in plain."""
    subprocess.run(["/bin/sh", CERTIFICATES, folder, "bench"], check=True, stdout=subprocess.DEVNULL)
    pair = {role: (str(folder / f"{role}.crt"), str(folder / f"{role}.key")) for role in ("node", "router")}
    trust = {"UNDERSTUDY_PEER_CA_FILE": str(folder / "ca.crt")}
    names = ("UNDERSTUDY_TLS_CERT_FILE", "UNDERSTUDY_TLS_KEY_FILE")
    node = trust | dict(zip(names, pair["node"], strict=True))
    names = ("UNDERSTUDY_PEER_CERT_FILE", "UNDERSTUDY_PEER_KEY_FILE")
    router = trust | dict(zip(names, pair["router"], strict=True))
    return Deployed(node, router, ssl.create_default_context(cafile=str(folder / "ca.crt")))


def issued(key_set: Path, credentials: Path) -> str:
    """Issue a token of an issuer that the file of credentials trusts."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(RSAAlgorithm.to_jwk(private.public_key()))
    key_set.write_text(json.dumps({"keys": [{**public, "kid": "bench", "use": "sig"}]}))
    credentials.write_text(
        f'[issuers.bench]\nissuer = "{ISSUER}"\naudience = ["understudy"]\nkeys_file = "{key_set}"\n'
        'roles_claim = "groups"\nroles = {group-0 = ["reader"]}\n'
    )
    groups = [f"group-{number}" for number in range(20)]
    claims = {
        "iss": ISSUER,
        "aud": "understudy",
        "sub": "bench",
        "exp": int(time.time()) + LIFETIME_S,
        "groups": groups,
    }
    return jwt.encode(claims, private, "RS256", {"kid": "bench"})


def measured(subject: Subject, subjects: Sequence[Subject], seconds: float) -> Round:
    """Measure one round: the subject has a core, all others share that of the load."""
    for each in subjects:
        for one in (each.server, *each.behind):
            os.sched_setaffinity(one.pid, {SERVER_CORE if one is subject.server else LOAD_CORE})
    before_s = subject.cpu_s()
    load = run_load(subject.server.port, subject.requests, seconds=seconds)
    if set(load.statuses) != {200}:
        raise RuntimeError(f"{subject.name}, {subject.kind}: it answers {load.statuses}")
    count = load.per_second * (seconds + WARM_UP_S)
    return Round(load.per_second, (subject.cpu_s() - before_s) / count * 1e6)


def report(subjects: Sequence[Subject]) -> None:
    """Print each kind of service, and the extra cost of its credential."""
    open_rate, open_us = medians(subjects[0])
    for subject in subjects:
        rate, cpu_us = medians(subject)
        print(f"{subject.name:8}{subject.kind:8}{rate:10,.0f}/s  {cpu_us:7.2f} us of CPU", end="")
        if subject is not subjects[0]:
            costs = f"{cpu_us / open_us - 1:+.1%} of CPU, {1 - rate / open_rate:+.1%} of throughput"
            goal = f" (goal at most {GOALS[subject.kind]:.0%})" if subject.kind in GOALS else ""
            print(f"  it costs {costs}: {cpu_us / open_us:.2f} of the CPU of {subjects[0].kind}{goal}", end="")
        print(flush=True)


def medians(subject: Subject) -> Round:
    rounds = subject.rounds
    return Round(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def wait_for(service: Server, path: str, shown: str) -> None:
    """Return when a service answers a lookup."""
    limit_s = time.monotonic() + START_LIMIT_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        connection.request("GET", path, headers={"authorization": shown} if shown else {})
        response = connection.getresponse()
        body, status = response.read(), response.status
        connection.close()
        if status == 200:
            return
        if time.monotonic() > limit_s:
            raise RuntimeError(f"{path} is answered with {status} {body[:300]!r}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
