"""A checkpoint in HDFS (decision 0081), by hdfs-native: no JVM. Name services and Kerberos come from HADOOP_CONF_DIR.

Rule: a file is read between two equal stats, because HDFS has no conditional reads: a file replaced meanwhile is read
again, and a download that was cut resumes only in the same file. The library has no deadlines, so each of its calls
runs on an event loop where it can be cancelled. The class of Hadoop's exception decides what a failed request means:
whether to retry, and what to tell the reader. Of its text only the path of a refused permission is shown.
"""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, BinaryIO, TypeVar
from xml.etree import ElementTree

from hdfs_native import AsyncClient

from understudy_node.checkpoint.files import FileStat, refuse_escape, rewritten, too_large_to_read, vanished
from understudy_node.checkpoint.store_files import (
    Consequence,
    Download,
    ReadFile,
    StorageFailure,
    StoreFiles,
    StoreLimits,
    text_of,
)
from understudy_shared.base.errors import NotACheckpointError, SettingsError
from understudy_shared.base.masking import masked_location

T = TypeVar("T")

COARSE_NS = 999_999
"""Times are when a file was closed, in truncated milliseconds. A rename keeps them."""

RENEW_MS = 10_000.0
"""Time between two connections. A client of the library has a thread for each core, and is kept for a while."""

REST_S = 120.0
"""Seconds that a client is kept after its last call: calls have ended by then, and look-ups are over."""

PIECE_BYTES = 1 << 20
"""Bytes of a read that are handed over at once."""

_CREDENTIALS = ("KRB5CCNAME", "KRB5_CLIENT_KTNAME", "HADOOP_TOKEN_FILE_LOCATION")
_LOCATION = re.compile(
    r"hdfs://(?P<host>[\w.-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>\d{1,5}))?(?:/(?P<path>.*))?", re.DOTALL
)
_SAID = re.compile(r'^(?:Fatal)?RPCError\("([\w.$]{1,200})", (.*)', re.DOTALL)
_KIND = re.compile(r"^(\w{1,40})")
_REFUSED = re.compile(r"user=([\w.@/$-]{1,100}), access=(\w{1,20})")

_DOCUMENT = "docs/object-stores.md"
_NAMENODE = "Check that the node can reach the NameNode, and that it runs; it asks again by itself"
_TICKET = (
    "Run kinit, or set KRB5CCNAME to a ticket cache, KRB5_CLIENT_KTNAME to a keytab, or HADOOP_TOKEN_FILE_LOCATION to "
    f"a file of tokens ({_DOCUMENT})"
)
_BLOCKS = {"DataTransferError", "BlocksNotFound", "BlockMissingException", "ReplicaNotFoundException", "ChecksumError"}
_TICKETS = {"GSSAPIError", "NoSASLMechanism", "SASLError", "SaslException", "OperationFailed"}
_REFUSALS = _TICKETS | {
    "AccessControlException",
    "AuthenticationException",
    "AuthorizationException",
    "InvalidToken",
    "SecurityException",
}
_NO_ADDRESS = ("lookup address", "Name or service not known", "name resolution", "nodename nor servname")


class HadoopFiles(StoreFiles["HadoopClient"]):
    """A checkpoint in HDFS. A read makes four requests for each file: stat, open, read, stat."""

    def __init__(self, store: Hdfs, *, limits: StoreLimits | None = None) -> None:
        """Ask nothing yet."""
        self._store = store
        super().__init__(store.url, limits or StoreLimits(renew_ms=RENEW_MS))

    def _open(self) -> HadoopClient:
        return self._store.open(self._limits)

    def _failure_of(self, error: Exception) -> StorageFailure:
        return self._store.failure_of(error)

    def stat(self, path: str) -> FileStat | None:
        """Make one request."""
        full = self._full(path)
        try:
            return self._call("Cannot stat", path, lambda client: client.stat(full))
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str] | None:
        """Make one request for each thousand names."""
        full = self._full(path)
        try:
            return self._call("Cannot list", path, lambda client: client.names(full))
        except FileNotFoundError:
            return None

    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        download = _HdfsDownload(self._full(path), file, max_bytes, self._where(path))
        try:
            return self._call("Cannot read", path, download.go_on, download)
        except FileNotFoundError:
            raise vanished(self._where(path)) from None

    def _full(self, path: str) -> str:
        refuse_escape(path)
        return f"{self._store.root}/{path}".rstrip("/") or "/"


@dataclass(slots=True)
class _HdfsDownload(Download):
    found: FileStat | None = None
    """The stat of the file when the download began."""

    def go_on(self, client: HadoopClient) -> FileStat:
        """Start, or resume where the try before was cut. Return the stat of the file, which is complete."""
        found = self._same(client)
        if self.max_bytes is not None and found.size > self.max_bytes:
            raise too_large_to_read(self.where, found.size, self.max_bytes)
        for part in client.read(self.path, self.done, found.size) if self.done < found.size else ():
            self.file.write(part)
            self.done += len(part)
            if self.done > found.size:
                break
        found = self._same(client)
        if self.done != found.size:
            raise ConnectionError("there were more or fewer bytes")
        return found

    def _same(self, client: HadoopClient) -> FileStat:
        """Return the stat of the file, which must still be the one that the download began with."""
        found = client.stat(self.path)
        if self.found is None:
            self.found = found
        elif found != self.found:
            raise rewritten(self.where)
        return found


class HadoopError(Exception):
    """The error of HDFS or of its client: `kind` is the name of the exception's class without its package."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind.rpartition(".")[2].rpartition("$")[2], text

    @property
    def is_absence(self) -> bool:
        if self.kind == "AccessControlException":
            return "(is not a directory)" in self.text
        return self.kind in {"FileNotFoundException", "ParentNotDirectoryException"}


def hadoop_failure(error: Exception, looked_in: str, away: str = "") -> StorageFailure:
    """Decide what an exception of a client means.

    `looked_in`: the places where credentials were looked for. `away`: more advice when there is no connection.
    """
    if isinstance(error, TimeoutError):
        return StorageFailure(Consequence.OPEN_AGAIN, "HDFS did not answer in time", _NAMENODE)
    if not isinstance(error, HadoopError):
        if any(each in str(error) for each in _NO_ADDRESS):
            return StorageFailure(Consequence.TRY_AGAIN, f"the NameNode's host has no address{away}", _NAMENODE)
        reason = "no connection to HDFS" if "refused" in str(error).lower() else "the connection to HDFS broke"
        return StorageFailure(Consequence.OPEN_AGAIN, f"{reason}{away}", _NAMENODE)
    if error.kind in _REFUSALS or "authentication is not enabled" in error.text:
        return _refusal(error, looked_in)
    if "safe mode" in error.text.lower():
        fix = (
            "The NameNode leaves it when enough blocks are reported: see `hdfs dfsadmin -safemode get` and the "
            "DataNodes; the node asks again by itself"
        )
        return StorageFailure(Consequence.TRY_AGAIN, "the file system is in safe mode", fix)
    if error.kind in _BLOCKS:
        fix = (
            "See `hdfs dfsadmin -report`, and that the node can reach the DataNodes at the addresses that they "
            f"registered with (dfs.client.use.datanode.hostname, {_DOCUMENT}); it asks again by itself"
        )
        return StorageFailure(Consequence.TRY_AGAIN, f"no DataNode gives the file's blocks ({error.kind})", fix)
    if error.kind == "StandbyException":
        fix = f"Write the name service in place of a NameNode's host, with HADOOP_CONF_DIR ({_DOCUMENT})"
        return StorageFailure(Consequence.OPEN_AGAIN, "the NameNode is on standby", fix)
    if error.kind == "UnsupportedFeature":
        fix = f"Keep the checkpoint outside encryption zones ({_DOCUMENT})"
        return StorageFailure(Consequence.FINAL, "the library cannot read such a file: it is encrypted", fix)
    return StorageFailure(Consequence.TRY_AGAIN, f"HDFS failed ({error.kind or 'no reason given'})", _NAMENODE)


def _refusal(error: HadoopError, looked_in: str) -> StorageFailure:
    if found := _REFUSED.search(error.text):
        reason = f"permission denied: the user {found[1]} has no right to {found[2]}"
        fix = f"Give the user the right to read the checkpoint and to enter each folder above it ({_DOCUMENT})"
        return StorageFailure(Consequence.REFUSED, reason, fix)
    if "libgssapi" in error.text:
        fix = "Install libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat)"
        return StorageFailure(Consequence.FINAL, "the library of Kerberos is not installed", fix)
    if error.kind in _TICKETS or "authentication is not enabled" in error.text:
        return StorageFailure(Consequence.REFUSED, f"there is no valid Kerberos ticket or token: {looked_in}", _TICKET)
    return StorageFailure(Consequence.REFUSED, f"the credentials are refused, or have expired ({error.kind})", _TICKET)


def places_of(environ: Mapping[str, str]) -> str:
    """Return the variables that name credentials, and the files that they name."""
    return ", ".join(f"{name} is {environ.get(name) or 'not set'}" for name in _CREDENTIALS)


def conf_dir(environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the configuration; None if the environment names no directory."""
    if found := environ.get("HADOOP_CONF_DIR"):
        return Path(found)
    home = environ.get("HADOOP_HOME")
    return Path(home, "etc", "hadoop") if home else None


def hadoop_conf(environ: Mapping[str, str], read_file: ReadFile) -> Mapping[str, str]:
    """Return names and values of the configuration, empty without a directory. Raises SettingsError.

    The user's own files are read, so their XML is trusted.
    """
    folder, found = conf_dir(environ), dict[str, str]()
    for path in [] if folder is None else [folder / "core-site.xml", folder / "hdfs-site.xml"]:
        if (text := read_file(path)) is None:
            continue
        try:
            properties = ElementTree.fromstring(text).iter("property")  # noqa: S314 -- see above
        except ElementTree.ParseError as error:
            raise SettingsError(f"The file is not XML: {error}", where=str(path)) from None
        pairs = ((each.findtext("name", "").strip(), each.findtext("value", "").strip()) for each in properties)
        found |= {name: value for name, value in pairs if name}
    return found


def namenodes_of(conf: Mapping[str, str], service: str) -> list[str]:
    """Return the ids of a name service's NameNodes, in the order of the configuration; empty if it has no NameNodes."""
    return [each.strip() for each in conf.get(f"dfs.ha.namenodes.{service}", "").split(",") if each.strip()]


class Hdfs:
    """A checkpoint in HDFS: the files below `root`, as the URL says."""

    def __init__(self, url: str, environ: Mapping[str, str] | None = None, read_file: ReadFile = text_of) -> None:
        """Parse the URL. `environ` is by default this process's."""
        location = _LOCATION.fullmatch(url)
        if location is None:
            raise NotACheckpointError(
                "This is not a location in HDFS",
                where=masked_location(url),
                fix="Write hdfs://namenode:8020/path, or hdfs://nameservice/path with HADOOP_CONF_DIR. Users and "
                "tickets come from the environment, never from the URL (docs/object-stores.md)",
            )
        self.url = masked_location(url.rstrip("/"))
        self.root = "/" + location["path"].strip("/") if (location["path"] or "").strip("/") else ""
        self._host, self._port = location["host"], location["port"]
        self._environ = os.environ if environ is None else environ
        self._read_file = read_file
        self._client: AsyncClient | None = None
        self._end: weakref.finalize[[object], Hdfs] | None = None
        """The call that lets the client rest once this object is gone."""
        self._opened = 0
        self._away = ""

    def open(self, limits: StoreLimits) -> HadoopClient:
        """Open a client. After one that did not answer, another NameNode of the name service is the first."""
        conf = hadoop_conf(self._environ, self._read_file)
        authority, service = self._authority(conf)
        namenodes = namenodes_of(conf, service)
        # Each NameNode is asked once. The library's own waits between rounds are not for its asynchronous client, which
        # panics there (0.14.7), and how often is asked is decided by the budget of all calls.
        settings = {"dfs.client.failover.max.attempts": str(max(0, len(namenodes) - 1))}
        if namenodes:
            first = self._opened % len(namenodes)
            settings[f"dfs.ha.namenodes.{service}"] = ",".join(namenodes[first:] + namenodes[:first])
        self._opened += 1
        folder = conf_dir(self._environ)
        try:
            client = AsyncClient(f"hdfs://{authority}", settings, None if folder is None else str(folder))
        except (RuntimeError, ValueError, OSError) as error:
            raise SettingsError(
                f"The configuration of HDFS is not understood: {_kind(str(error))}",
                where=str(folder),
                fix="Check dfs.ha.namenodes and dfs.namenode.rpc-address there (docs/object-stores.md)",
            ) from None
        KEPT.keep(client, instead_of=self._client, now_s=monotonic())
        if self._end is not None:
            self._end.detach()
        self._client, self._end = client, weakref.finalize(self, KEPT.rest, client)
        self._end.atexit = False
        return HadoopClient(client, limits.stalled_ms / 1000)

    def failure_of(self, error: Exception) -> StorageFailure:
        return hadoop_failure(error, places_of(self._environ), self._away)

    def _authority(self, conf: Mapping[str, str]) -> tuple[str, str]:
        """Return the address, and its host or name service. A URL without a host means `fs.defaultFS`."""
        host, port = self._host, self._port
        if not host:
            default = _LOCATION.fullmatch(conf.get("fs.defaultFS", "").rstrip("/"))
            if default is None or not default["host"]:
                raise SettingsError(
                    "The URL names no NameNode, and fs.defaultFS no HDFS",
                    where=self.url,
                    fix="Write hdfs://namenode:8020/path, or set HADOOP_CONF_DIR to a folder with core-site.xml",
                )
            host, port = default["host"], default["port"]
        if port is not None:
            return f"{host}:{port}", host
        if namenodes_of(conf, host):
            return host, host
        prefix = "dfs.ha.namenodes."
        known = ", ".join(sorted(name.removeprefix(prefix) for name in conf if name.startswith(prefix))) or "none"
        folder = conf_dir(self._environ)
        there = f"{folder} has the name services: {known}" if folder else "HADOOP_CONF_DIR is not set"
        self._away = f"; {host} is not a name service: {there}"
        return f"{host}:8020", host


class KeptClients:
    """The clients of this process. One that may have work under way is kept.

    Closing a client waits for its look-ups of addresses, and for an answer that arrives just then. That answer waits
    for the interpreter's lock, which the close holds: a deadlock.
    """

    def __init__(self) -> None:
        self._resting_s: dict[int, tuple[object, float | None]] = {}

    def __len__(self) -> int:
        return len(self._resting_s)

    def keep(self, client: object, *, instead_of: object | None, now_s: float) -> None:
        """Keep a client. The one that it replaces makes no more calls; idle ones are closed."""
        self._resting_s[id(client)] = client, None
        if instead_of is not None:
            self._resting_s[id(instead_of)] = instead_of, now_s
        for key, (_, since_s) in list(self._resting_s.items()):
            if since_s is not None and now_s - since_s > REST_S:
                self._resting_s.pop(key, None)  # another thread may do the same

    def rest(self, client: object) -> None:
        """Note that a client makes no more calls. It is closed by a later `keep`."""
        self._resting_s[id(client)] = client, monotonic()


KEPT = KeptClients()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="hdfs-native", daemon=True).start()
    return loop


class HadoopClient:
    """A connection to HDFS. Paths are absolute. FileNotFoundError is an answer, everything else a failure.

    Each call ends when nothing has come for `stalled_s`.
    """

    def __init__(self, client: AsyncClient, stalled_s: float) -> None:
        self._client, self._stalled_s = client, stalled_s

    def stat(self, path: str) -> FileStat:
        """Return the stat of a file. A folder is not a file."""
        return self._answered(self._stat(path))

    def names(self, path: str) -> list[str] | None:
        """List a folder; None if it is a file."""
        return self._answered(self._names(path))

    def read(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        """Read the file of that size from `offset` to its end, piece by piece."""
        parts = self._answered(self._opened(path, offset, size))
        while piece := self._answered(self._piece(parts)):
            yield piece

    def _answered(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end, which it reaches by its own deadline."""
        try:
            return asyncio.run_coroutine_threadsafe(call, _loop()).result()
        except (RuntimeError, NotImplementedError) as error:
            said = _hadoop_error(error)
            raise FileNotFoundError if said.is_absence else said from None
        except Exception:
            raise
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of the library, and no Exception
                raise HadoopError("Panic", str(error)) from None
            raise

    async def _stat(self, path: str) -> FileStat:
        async with asyncio.timeout(self._stalled_s):
            found = await self._client.get_file_info(path)
        if found.isdir:
            raise FileNotFoundError(path)
        return FileStat(found.modification_time * 1_000_000, found.length, 0, COARSE_NS)

    async def _names(self, path: str) -> list[str] | None:
        names, now_s = [], asyncio.get_running_loop().time
        async with asyncio.timeout(self._stalled_s) as deadline:
            async for each in self._client.list_status(path):
                deadline.reschedule(now_s() + self._stalled_s)
                if each.path == path and not each.isdir:
                    return None  # a listing of a file has the file alone
                names.append(each.path.rpartition("/")[2])
        return names

    async def _opened(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]:
        async with asyncio.timeout(self._stalled_s):
            reader = await self._client.read(path)
        if len(reader) != size:
            raise ConnectionError("the file was replaced")  # the stats will differ
        return reader.read_range_stream(offset, size - offset)

    async def _piece(self, parts: AsyncIterator[bytes]) -> bytes:
        """Read until a piece is full or the file ends."""
        piece, now_s = bytearray(), asyncio.get_running_loop().time
        async with asyncio.timeout(self._stalled_s) as deadline:
            async for part in parts:
                deadline.reschedule(now_s() + self._stalled_s)
                piece += part
                if len(piece) >= PIECE_BYTES:
                    break
        return bytes(piece)


def _hadoop_error(error: Exception) -> HadoopError:
    text = str(error)
    if isinstance(error, NotImplementedError):
        return HadoopError("UnsupportedFeature", text)
    said = _SAID.match(text)
    return HadoopError(said[1], said[2]) if said else HadoopError(_kind(text), text)


def _kind(text: str) -> str:
    found = _KIND.match(text)
    return found[1] if found else ""
