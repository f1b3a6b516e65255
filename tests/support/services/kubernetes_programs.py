"""A real API server of Kubernetes on loopback, with its etcd and its controllers: `make kubernetes` builds them.

Nothing runs in it: there is no kubelet, so pods are made, judged and never started.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.repository import ROOT
from tests.support.services.certificates import Signer
from tests.support.services.kubernetes_api import TOKEN, Server
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_port

PROGRAMS = ROOT / ".cache" / "kubernetes" / "bin"
LIMIT_S = 120.0
_TIMEOUT_S = 30


@contextmanager
def api_server(folder: Path) -> Iterator[Server]:
    """An API server that is ready; skips the test where none was built."""
    needs("etcd", "kube-apiserver")
    authority = Signer(folder)
    etcd, peers, port = (free_port() for _ in range(3))
    server = Server(port, authority)
    with ExitStack() as stack:
        stack.callback(server.close)
        stack.enter_context(_running(folder, "etcd", _etcd(folder, etcd, peers), lambda: _listens(etcd)))
        stack.enter_context(_running(folder, "kube-apiserver", _apiserver(authority, etcd, port), server.is_ready))
        yield server


@contextmanager
def controllers(folder: Path, server: Server) -> Iterator[None]:
    """What makes pods of Deployments and StatefulSets; skips the test where it was not built."""
    needs("kube-controller-manager")
    port = free_port()
    arguments = _controllers(server.kubeconfig(folder), port)
    with _running(folder, "kube-controller-manager", arguments, lambda: _listens(port)):
        yield


def needs(*programs: str) -> None:
    """Skip the test where these are not."""
    missing = [name for name in programs if not (PROGRAMS / name).exists()]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: make kubernetes")


def _etcd(folder: Path, port: int, peers: int) -> list[str]:
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    return [
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _apiserver(authority: Signer, etcd: int, port: int) -> list[str]:
    own, accounts = authority.issue("kube-apiserver"), authority.issue("service-accounts")
    tokens = authority.folder / "tokens.csv"
    tokens.write_text(f'{TOKEN},administrator,1,"system:masters"\n')
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--tls-cert-file={own.certificate}",
        f"--tls-private-key-file={own.key}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={accounts.certificate}",
        f"--service-account-signing-key-file={accounts.key}",
    ]


def _controllers(kubeconfig: Path, port: int) -> list[str]:
    made_of = ("deployment", "replicaset", "statefulset", "horizontal-pod-autoscaler", "garbage-collector")
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={kubeconfig.parent / 'controllers'}",
        "--leader-elect=false",
        "--horizontal-pod-autoscaler-sync-period=1s",
        f"--controllers={','.join(f'{each}-controller' for each in made_of)}",
    ]


@contextmanager
def _running(folder: Path, name: str, arguments: Sequence[str], is_ready: Callable[[], bool]) -> Iterator[None]:
    """One of the programs, from when it is ready; what it says is in a file."""
    said = folder / f"{name}.log"
    with said.open("w") as log:
        process = subprocess.Popen([PROGRAMS / name, *arguments], stdout=log, stderr=log)
    try:
        wait_until(lambda: is_ready() or process.poll() is not None, what=name, limit_s=LIMIT_S, every_s=0.1)
        assert process.poll() is None, said.read_text()[-2000:]
        yield
    finally:
        process.terminate()
        process.wait(_TIMEOUT_S)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
