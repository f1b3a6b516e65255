"""HDFS by HTTP (WebHDFS, HttpFS), for where only HTTP is open. To a read the NameNode answers with a DataNode's URL.

A delegation token is a part of each request's URL, so no URL is ever shown, and HTTPS is never left for HTTP.
"""

from __future__ import annotations

import getpass
import os
import re
import ssl
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx
import orjson

from understudy_node.checkpoint.failure import Failure
from understudy_node.checkpoint.hadoop_conf import hadoop_conf, namenodes_of
from understudy_node.checkpoint.hadoop_failures import HadoopError, hadoop_failure, places_of
from understudy_node.checkpoint.hadoop_files import HadoopClient, HadoopStatus
from understudy_node.checkpoint.store_access import ReadFile, text_of
from understudy_node.checkpoint.store_calls import StoreLimits
from understudy_shared.base.errors import NotACheckpointError, SettingsError
from understudy_shared.base.masking import masked_location

PIECE_BYTES = 1 << 18
"""Bytes of a read that are handed over at once."""

TOKEN_FILE = "WEBHDFS_TOKEN_FILE"  # noqa: S105 -- the name of a variable
"""Names a file with a delegation token, as GETDELEGATIONTOKEN returns it; it is read again after a refusal."""

_DEFAULT_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}
_LOCATION = re.compile(
    r"(?P<scheme>s?webhdfs)://(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>\d{1,5}))?(?:/(?P<path>.*))?",
    re.DOTALL,
)
_ANSWERS = frozenset((httpx.codes.OK, httpx.codes.TEMPORARY_REDIRECT))


class WebHdfs:
    """A checkpoint in HDFS: the files below `root`, as the URL says."""

    def __init__(self, url: str, environ: Mapping[str, str] | None = None, read_file: ReadFile = text_of) -> None:
        """Parse the URL. `environ` is by default this process's."""
        location = _LOCATION.fullmatch(url)
        if location is None:
            raise NotACheckpointError(
                "This is not a location in WebHDFS",
                where=masked_location(url),
                fix="Write webhdfs://namenode:9870/path, or swebhdfs:// for TLS. The user comes from HADOOP_USER_NAME, "
                f"a token from the file that {TOKEN_FILE} names, never from the URL (docs/object-stores.md)",
            )
        self.url = masked_location(url.rstrip("/"))
        self.root = "/" + location["path"].strip("/") if (location["path"] or "").strip("/") else ""
        self._scheme, self._host, self._port = location["scheme"], location["host"], location["port"]
        self._environ = os.environ if environ is None else environ
        self._read_file = read_file
        self._opened = 0

    def open(self, limits: StoreLimits) -> HadoopClient:
        """Open a client with the present token. After one that did not answer, another NameNode is the first."""
        times = httpx.Timeout(limits.stalled_ms / 1000, connect=limits.connect_ms / 1000)
        try:
            trusted: ssl.SSLContext | bool = ssl.create_default_context() if self._scheme == "swebhdfs" else True
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"The trusted certificates cannot be read ({type(error).__name__})",
                where="SSL_CERT_FILE",
                fix="Name a file with the certificates of the authorities, in PEM",
            ) from None
        client = httpx.Client(verify=trusted, timeout=times, follow_redirects=False, trust_env=False)
        places, first = self._places(), self._opened
        self._opened += 1
        return _Web(client, places, self._identity(), first % len(places))

    @property
    def endpoint(self) -> str:
        """See `HadoopStore.endpoint`."""
        return self._places()[0]

    def failure_of(self, error: Exception) -> Failure:
        """See `HadoopStore.failure_of`."""
        return hadoop_failure(error, places_of(self._environ, [TOKEN_FILE]))

    def _places(self) -> Sequence[str]:
        """Return the URL of each NameNode that may be asked: of a name service all, else one."""
        protocol = "https" if self._scheme == "swebhdfs" else "http"
        found: list[str | None] = []
        if self._port is None:
            conf = hadoop_conf(self._environ, self._read_file)
            ids = namenodes_of(conf, self._host)
            found = [conf.get(f"dfs.namenode.{protocol}-address.{self._host}.{each}") for each in ids]
        addresses = [each for each in found if each] or [f"{self._host}:{self._port or _DEFAULT_PORTS[self._scheme]}"]
        return [f"{protocol}://{each}" for each in addresses]

    def _identity(self) -> Mapping[str, str]:
        """Return the parameters that say who asks."""
        if file := self._environ.get(TOKEN_FILE):
            if not (token := (self._read_file(Path(file)) or "").strip()):
                raise SettingsError(
                    f"{TOKEN_FILE} names a file that cannot be read, or is empty",
                    where=file,
                    fix="Write the urlString of a delegation token there (docs/object-stores.md)",
                )
            return {"delegation": token}
        try:
            return {"user.name": self._environ.get("HADOOP_USER_NAME") or getpass.getuser()}
        except (KeyError, OSError):  # a container may run as a number without a name: then the server names the user
            return {}


class _Web:
    """A client of the NameNodes at `places`, and of the DataNodes that they name."""

    def __init__(self, client: httpx.Client, places: Sequence[str], identity: Mapping[str, str], active: int) -> None:
        self._client, self._places, self._identity = client, places, identity
        weakref.finalize(self, client.close)  # a client that another one replaced
        self._active = active

    def status(self, path: str) -> HadoopStatus:
        found = self._document(path, "GETFILESTATUS", "FileStatus")
        try:
            is_folder = found["type"] == "DIRECTORY"
            return HadoopStatus(found["modificationTime"], found["length"], found.get("fileId") or 0, is_folder)
        except (KeyError, TypeError):
            raise _not_webhdfs() from None

    def names(self, path: str) -> list[str] | None:
        """List in one reply: the parameter of LISTSTATUS_BATCH for the next page cannot carry every name."""
        entries = self._document(path, "LISTSTATUS", "FileStatuses")
        try:
            names = [str(each["pathSuffix"]) for each in entries["FileStatus"]]
        except (KeyError, TypeError):
            raise _not_webhdfs() from None
        return None if names == [""] else names  # a listing of a file has the file alone

    def read(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        """Read from the DataNode that the NameNode names; HttpFS answers at once."""
        if offset >= size:
            return
        reply = self._answer(path, "OPEN", offset=str(offset), length=str(size - offset))
        if reply.status_code == httpx.codes.TEMPORARY_REDIRECT:
            reply = self._sent(self._target(reply))
        if reply.status_code != httpx.codes.OK:
            raise _refusal(reply)
        yield from _body(reply)

    def _document(self, path: str, operation: str, name: str, **parameters: str) -> Any:
        """Return the part `name` of a JSON document."""
        reply = self._answer(path, operation, **parameters)
        try:
            return orjson.loads(b"".join(_body(reply)))[name]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise _not_webhdfs() from None

    def _answer(self, path: str, operation: str, **parameters: str) -> httpx.Response:
        """Ask the NameNode that answered last, and the others while one is on standby or away. The body is not read."""
        query = urlencode({"op": operation, **parameters, **self._identity})
        order = [*range(self._active, len(self._places)), *range(self._active)]
        for index in order:
            try:
                reply = self._sent(f"{self._places[index]}/webhdfs/v1{quote(path)}?{query}")
                if reply.status_code not in _ANSWERS:
                    raise _refusal(reply)
            except (HadoopError, ConnectionError, TimeoutError) as error:
                is_elsewhere = not isinstance(error, HadoopError) or error.kind == "StandbyException"
                if index == order[-1] or not is_elsewhere:
                    raise
            else:
                self._active = index
                return reply
        raise AssertionError("there is at least one place")

    def _sent(self, url: str) -> httpx.Response:
        with _translated():
            request = self._client.build_request("GET", url, headers={"accept-encoding": "identity"})
            return self._client.send(request, stream=True)

    def _target(self, reply: httpx.Response) -> str:
        """Return where a redirect leads. From HTTPS it may not lead to HTTP, since it takes the token along."""
        reply.close()
        target = reply.headers.get("location", "")
        scheme = urlsplit(target).scheme
        if scheme not in ("http", "https") or (reply.url.scheme, scheme) == ("https", "http"):
            raise HadoopError("BadRedirect", f"to {scheme or 'nowhere'}")
        return str(target)


@contextmanager
def _translated() -> Iterator[None]:
    """Convert the library's errors, whose request has the token in its URL."""
    try:
        yield
    except httpx.TimeoutException:
        raise TimeoutError from None
    except httpx.HTTPError as error:  # its text has no URL
        raise ConnectionError(str(error)) from None


def _body(reply: httpx.Response) -> Iterator[bytes]:
    """Read the body piece by piece, and give the connection back."""
    try:
        with _translated():
            yield from reply.iter_raw(PIECE_BYTES)
    finally:
        reply.close()


def _refusal(reply: httpx.Response) -> Exception:
    """Return the exception that a reply names. Only a reply of HDFS itself can say that a file is absent."""
    try:
        said = orjson.loads(b"".join(_body(reply)))["RemoteException"]
        error = HadoopError(str(said["exception"]), str(said.get("message", "")))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        kind = "AuthenticationException" if reply.status_code == httpx.codes.UNAUTHORIZED else "NoWebHdfs"
        return HadoopError(kind, f"status {reply.status_code}")
    return FileNotFoundError() if error.is_absence else error


def _not_webhdfs() -> HadoopError:
    return HadoopError("NoWebHdfs", "no document of WebHDFS")
