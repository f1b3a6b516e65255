"""A real HDFS: a NameNode and a DataNode as processes. A test may kill, stop and start either.

The jars come through Maven, once, into the checkout's `.cache`. Where there is no Maven or no Java, tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import pytest
from hdfs_native import Client, WriteOptions
from tests.support.kafka.maven import fetched_jars
from tests.support.object_store.bucket import Bucket, new_name
from tests.support.object_store.kerberos import REALM, Kerberos
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.hdfs import HadoopFiles, Hdfs
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.sockets import free_port

_POM = Path(__file__).with_name("hdfs_jars") / "pom.xml"
_SERVER = "org.apache.hadoop.hdfs.server"
_MAIN = {"namenode": f"{_SERVER}.namenode.NameNode", "datanode": f"{_SERVER}.datanode.DataNode"}
_START_LIMIT_S = 240
_LOG4J = """
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.SimpleLayout
"""

Role = Literal["namenode", "datanode"]


class Folder(Bucket):
    """An empty folder of the file system, which a test writes to as its owner."""

    def __init__(self, name: str, client: Client) -> None:
        super().__init__(name, None)
        self._client = client

    def put(self, key: str, data: bytes) -> None:
        """Replace the file by one that was closed elsewhere, as Spark does."""
        path, arriving = f"/{self.name}/{key}", f"/{self.name}/.{new_name()}.tmp"
        with self._client.create(arriving, WriteOptions(create_parent=True)) as file:
            file.write(data)
        self._client.mkdirs(path.rpartition("/")[0], create_parent=True)
        self._client.rename(arriving, path, overwrite=True)

    def get(self, key: str) -> bytes:
        return bytes(self._client.read(f"/{self.name}/{key}").read())

    def mark_folder(self, key: str) -> None:
        """Make the folder: it needs no mark."""
        self._client.mkdirs(f"/{self.name}/{key}", create_parent=True)

    def delete(self, key: str) -> None:
        self._client.delete(f"/{self.name}/{key}", recursive=True)

    def written(self, key: str) -> datetime | None:
        try:
            found = self._client.get_file_info(f"/{self.name}/{key}")
        except FileNotFoundError:
            return None
        return datetime.fromtimestamp(found.modification_time / 1000, UTC)

    def keys(self, prefix: str) -> list[str]:
        found = self._client.list_status(f"/{self.name}/{prefix}".rstrip("/"), recursive=True)
        return sorted(each.path.removeprefix(f"/{self.name}/") for each in found if not each.isdir)


class HdfsServer:
    """Both processes. With `kerberos` they know who asks, and encrypt what DataNodes send."""

    def __init__(self, folder: Path, jars: Path, java: str, kerberos: Kerberos | None = None) -> None:
        self._folder, self._jars, self._java, self._kerberos = folder, jars, java, kerberos
        self._processes: dict[Role, subprocess.Popen[bytes]] = {}
        names = ("rpc", "http", "data", "data_http", "data_ipc")
        self.ports = dict(zip(names, (free_port() for _ in names), strict=True))
        self.conf = folder / "conf"
        for each in ("hdfs", "datanode", "static", "secondary"):  # the jar has none, and a process ends without them
            (self.conf / "webapps" / each).mkdir(parents=True)
        self._keytab = kerberos and kerberos.keytab(*(f"{name}/localhost" for name in ("hdfs", "HTTP")))
        write_conf(
            self.conf / "core-site.xml",
            {"fs.defaultFS": f"hdfs://127.0.0.1:{self.ports['rpc']}", "hadoop.tmp.dir": str(folder / "tmp")}
            | self._security(),
        )
        write_conf(self.conf / "hdfs-site.xml", self._settings() | self._security())  # after the defaults of HDFS
        (self.conf / "log4j.properties").write_text(_LOG4J)

    def client(self) -> Client:
        """Return a client that may do everything, as the user who started the NameNode."""
        url = f"hdfs://127.0.0.1:{self.ports['rpc']}"
        if self._keytab is None:
            return Client(url)
        return Client(
            url, config_dir=str(self.conf), kerberos_principal="hdfs/localhost", kerberos_keytab=str(self._keytab)
        )

    def new_bucket(self) -> Folder:
        folder = Folder(new_name(), self.client())
        folder.mark_folder("")
        return folder

    def make_folders(self, paths: Sequence[str]) -> None:
        """Make many, some at once."""
        client = self.client()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: client.mkdirs(path, create_parent=True), paths))

    def start(self, role: Role, *, wait: bool = True) -> None:
        """Start the process, and wait until the file system can be written to."""
        with (self._folder / f"{role}.log").open("ab") as log:
            self._processes[role] = subprocess.Popen(self._command(role), stdout=log, stderr=log)
        if wait:
            wait_until(self._is_ready, what="HDFS", limit_s=_START_LIMIT_S)

    def kill(self, role: Role) -> None:
        self._processes[role].kill()
        self._processes[role].wait(30)

    def freeze(self, role: Role) -> None:
        self._processes[role].send_signal(signal.SIGSTOP)

    def thaw(self, role: Role) -> None:
        self._processes[role].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for role in self._processes:
            self.kill(role)

    def format(self) -> None:
        done = subprocess.run(
            [*self._command("namenode"), "-format", "-force", "-nonInteractive"], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def admin(self, *arguments: str) -> str:
        return self.run("org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments)

    def run(self, tool: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
        """Run a tool of Hadoop's, by the name of its class."""
        command = [*self._java_command(), tool, *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_START_LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def live_datanodes(self) -> int:
        query = "qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['http']}/jmx?{query}", timeout=10) as reply:
            found = json.load(reply)["beans"]  # empty while it starts
        return int(found[0]["NumLiveDataNodes"]) if found else 0

    def _is_ready(self) -> bool:
        for role, process in self._processes.items():
            assert process.poll() is None, (self._folder / f"{role}.log").read_text()[-3000:]
        try:
            if self._kerberos is None and not self.live_datanodes():  # with Kerberos it wants to know who asks
                return False
            with self.client().create("/.ready", WriteOptions(overwrite=True)) as file:
                file.write(b"x")
        except (OSError, RuntimeError):
            return False
        return True

    def _command(self, role: Role) -> list[str]:
        return [*self._java_command(), _MAIN[role]]

    def _java_command(self) -> list[str]:
        options = ["-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dhadoop.home.dir={self._folder}"]
        if self._kerberos is not None:
            options.append(f"-Djava.security.krb5.conf={self._kerberos.conf}")
        return [self._java, *options, "-cp", f"{self.conf}:{self._jars}/*"]

    def _settings(self) -> dict[str, str]:
        ports = self.ports
        return {
            "dfs.replication": "1",
            "dfs.namenode.name.dir": str(self._folder / "names"),
            "dfs.datanode.data.dir": str(self._folder / "data"),
            "dfs.namenode.http-address": f"127.0.0.1:{ports['http']}",
            "dfs.datanode.address": f"127.0.0.1:{ports['data']}",
            "dfs.datanode.http.address": f"127.0.0.1:{ports['data_http']}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ports['data_ipc']}",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.ls.limit": "10",
            "dfs.namenode.edits.noeditlogchannelflush": "true",  # nothing is lost with a process
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
        }

    def _security(self) -> dict[str, str]:
        if self._keytab is None:
            return {}
        names = {f"dfs.{role}.kerberos.principal": f"hdfs/localhost@{REALM}" for role in _MAIN}
        keytabs = ("dfs.namenode.keytab.file", "dfs.datanode.keytab.file")
        by_http = ("dfs.web.authentication.kerberos", "hadoop.http.authentication.kerberos")
        return {
            **names,
            **{name: str(self._keytab) for name in (*keytabs, *(f"{each}.keytab" for each in by_http))},
            **{f"{each}.principal": f"HTTP/localhost@{REALM}" for each in by_http},
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            "hadoop.rpc.protection": "privacy",
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": "privacy",
            "ignore.secure.ports.for.testing": "true",  # ports below 1024 are root's
        }


@dataclass(frozen=True, slots=True)
class Door:
    """The server, as the suites of all stores ask it."""

    server: HdfsServer
    depth: int = 0
    scheme = "hdfs"

    @property
    def port(self) -> int:
        return self.server.ports["rpc"]

    def new_bucket(self) -> Folder:
        return self.server.new_bucket()

    def url(self, bucket: str, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/{bucket}/{path}"

    def files(
        self, bucket: str, path: str, *, limits: StoreLimits | None = None, environ: Mapping[str, str] | None = None
    ) -> HadoopFiles:
        return HadoopFiles(Hdfs(self.url(bucket, path), environ or {}), limits=limits)

    @property
    def native(self) -> Door:
        """The way that Spark takes."""
        return self


def write_conf(path: Path, settings: Mapping[str, str]) -> None:
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    ]
    path.write_text(f"<configuration>{''.join(lines)}</configuration>")


def jars() -> Path | str:
    return fetched_jars(_POM, "hdfs-server-jars")


@contextmanager
def hdfs_server(folder: Path, kerberos: Kerberos | None = None) -> Iterator[HdfsServer]:
    """A server until the end of the block; skips the test where it cannot be had."""
    found, java = jars(), shutil.which("java")
    if isinstance(found, str):
        pytest.skip(found)
    if java is None:
        pytest.skip("no Java")
    server = HdfsServer(folder, found, java, kerberos)
    server.format()
    try:
        server.start("datanode", wait=False)
        server.start("namenode")
        yield server
    finally:
        server.end()
