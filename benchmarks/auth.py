"""What authentication costs a lookup: services that ask for API keys beside services that ask nobody, in turns.

    python -m benchmarks.auth [--keys 100000] [--rounds 5] [--seconds 3]

A node and a router of each kind follow the same checkpoint. The one that is measured has a core to itself, the load and
what it asks share the other. Ratios are of medians: CPU per lookup is the one to trust on a machine that others use.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.load import WARM_UP_S, run_load
from benchmarks.servers import CLUSTER_NODE, LOAD_CORE, ROUTER, SERVER_CORE, Server, pin_load, server
from understudy_shared.auth.api_keys import new_key
from understudy_shared.auth.key_file import add_key
from understudy_shared.local_redis import local_redis

SAMPLED_KEYS = 1_000
START_LIMIT_S = 60.0
GOAL = 0.05
"""The part of a lookup that an API key may cost."""


class Round(NamedTuple):
    per_second: float
    cpu_us: float


@dataclass(slots=True)
class Subject:
    """A server, and the requests that it is sent."""

    name: str
    server: Server
    requests: Sequence[bytes]
    rounds: list[Round] = field(default_factory=list)


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
    for what in ("node", "router"):
        report(*(subject for subject in subjects if subject.name.startswith(what)))


def started(checkpoint: BigCheckpoint, folder: Path, running: ExitStack) -> Iterator[Subject]:
    """A node and a router that ask nobody, then those that ask for keys."""
    key, credentials, secret = new_key(), folder / "credentials.toml", folder / "secret"
    add_key(credentials, key, principal="bench", roles=["reader"], now=datetime.now(UTC), expires_at=None)
    secret.write_text(new_key().text)
    guarded = {"UNDERSTUDY_CREDENTIALS_FILE": str(credentials), "UNDERSTUDY_CLUSTER_SECRET_FILE": str(secret)}
    names = [checkpoint.key(number) for number in random.Random(0).sample(range(checkpoint.keys), SAMPLED_KEYS)]
    for kind, env, shown in (("open", {}, ""), ("guarded", guarded, f"authorization: Bearer {key.text}\r\n")):
        bus = running.enter_context(local_redis())
        os.sched_setaffinity(bus.pid, {LOAD_CORE})
        arguments = (str(checkpoint.path), str(folder / f"data-{kind}"), bus.url)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", env=env))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez", env=env))
        requests = [f"GET /v1/stores/op0/keys/{name} HTTP/1.1\r\nhost: b\r\n{shown}\r\n".encode() for name in names]
        wait_for(router, f"/v1/stores/op0/keys/{names[0]}", "" if not shown else f"Bearer {key.text}")
        yield Subject(f"node, {kind}", node, requests)
        yield Subject(f"router, {kind}", router, requests)


def measured(subject: Subject, subjects: Sequence[Subject], seconds: float) -> Round:
    """One round: the subject has a core, all others share that of the load."""
    for each in subjects:
        os.sched_setaffinity(each.server.pid, {SERVER_CORE if each is subject else LOAD_CORE})
    before_s = subject.server.cpu_s()
    load = run_load(subject.server.port, subject.requests, seconds=seconds)
    if set(load.statuses) != {200}:
        raise RuntimeError(f"{subject.name} answers {load.statuses}")
    count = load.per_second * (seconds + WARM_UP_S)
    return Round(load.per_second, (subject.server.cpu_s() - before_s) / count * 1e6)


def report(unguarded: Subject, guarded: Subject) -> None:
    """Both, and what the second costs more."""
    rates, costs = [], []
    for subject in (unguarded, guarded):
        rates.append(statistics.median(each.per_second for each in subject.rounds))
        costs.append(statistics.median(each.cpu_us for each in subject.rounds))
        print(f"{subject.name:18}{rates[-1]:10,.0f}/s  {costs[-1]:7.2f} us of CPU")
    print(
        f"{'':18}an API key costs {costs[1] / costs[0] - 1:+.1%} of CPU, {1 - rates[1] / rates[0]:+.1%} of throughput "
        f"(goal at most {GOAL:.0%})",
        flush=True,
    )


def wait_for(router: Server, path: str, shown: str) -> None:
    """Return when the router answers a lookup."""
    limit_s = time.monotonic() + START_LIMIT_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=30)
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
