"""Says what a failed request to HDFS means: whether to try again, and what the reader should do (pure).

Hadoop's own class of an exception decides, by its protocol and by HTTP alike. Of its text only what a permission is
refused for is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from understudy_node.checkpoint.failure import Failure, Meaning

DOCUMENT = "docs/object-stores.md"

_REFUSED = re.compile(r"user=([\w.@/$-]{1,100}), access=(\w{1,20})")

SAFE_MODE = (
    "The NameNode leaves it when enough blocks are reported: see `hdfs dfsadmin -safemode get` and the DataNodes; the "
    "node asks again by itself"
)
BLOCKS = (
    "See `hdfs dfsadmin -report`, and that the node can reach the DataNodes at the addresses that they registered with "
    f"(dfs.client.use.datanode.hostname, {DOCUMENT}); it asks again by itself"
)
RIGHTS = f"Give the user the right to read the checkpoint and to enter each folder above it ({DOCUMENT})"
NAMENODE = "Check that the node can reach the NameNode, and that it runs; it asks again by itself"
TICKET = (
    "Run kinit, or set KRB5CCNAME to a ticket cache or KRB5_CLIENT_KTNAME to a keytab; for WebHDFS set "
    f"WEBHDFS_TOKEN_FILE ({DOCUMENT})"
)
STANDBY = f"Write the name service in place of a NameNode's host, with HADOOP_CONF_DIR ({DOCUMENT})"
ENCRYPTED = f"Keep the checkpoint outside encryption zones, or read it by webhdfs:// ({DOCUMENT})"
NO_WEBHDFS = "Write the NameNode's HTTP port (9870, with TLS 9871) or that of HttpFS, and set dfs.webhdfs.enabled=true"
REDIRECT = "Set dfs.http.policy=HTTPS_ONLY on the DataNodes too, or write webhdfs://"
CERTIFICATE = "Name the authority's certificate by SSL_CERT_FILE, and write the host as the certificate has it"
NO_LIBRARY = "Install libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat)"

_BLOCKS = frozenset(
    ("DataTransferError", "BlocksNotFound", "BlockMissingException", "ReplicaNotFoundException", "ChecksumError")
)
_TICKETS = frozenset(("GSSAPIError", "NoSASLMechanism", "SASLError", "SaslException", "OperationFailed"))
_REFUSALS = _TICKETS | {
    "AccessControlException",
    "AuthenticationException",
    "AuthorizationException",
    "InvalidToken",
    "SecurityException",
}
_OTHERS = {
    "StandbyException": Failure(Meaning.OPEN_AGAIN, "the NameNode is on standby", STANDBY),
    "UnsupportedFeature": Failure(Meaning.FINAL, "the library cannot read such a file: it is encrypted", ENCRYPTED),
    "NoWebHdfs": Failure(Meaning.TRY_AGAIN, "the server does not answer as WebHDFS does", NO_WEBHDFS),
    "BadRedirect": Failure(Meaning.FINAL, "the NameNode sends a reader from HTTPS to HTTP, or nowhere", REDIRECT),
}
_NO_ADDRESS = ("lookup address", "Name or service not known", "name resolution", "nodename nor servname")
_ABSENT = frozenset(("FileNotFoundException", "ParentNotDirectoryException"))


class HadoopError(Exception):
    """The error of HDFS or of its client: `kind` is the name of the exception's class without its package."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind.rpartition(".")[2].rpartition("$")[2], text

    @property
    def is_absence(self) -> bool:
        """Whether there is no such file."""
        return self.kind in _ABSENT or (self.kind == "AccessControlException" and "(is not a directory)" in self.text)


def hadoop_failure(error: Exception, looked_in: str, away: str = "") -> Failure:
    """Decide what an exception of a client means.

    `looked_in`: the places where credentials were looked for. `away`: more advice when there is no connection.
    """
    if isinstance(error, TimeoutError):
        return Failure(Meaning.OPEN_AGAIN, "HDFS did not answer in time", NAMENODE)
    if not isinstance(error, HadoopError):
        return _no_connection(str(error), away)
    if error.kind in _REFUSALS or "authentication is not enabled" in error.text:
        return _refusal(error, looked_in)
    if "safe mode" in error.text.lower():
        return Failure(Meaning.TRY_AGAIN, "the file system is in safe mode", SAFE_MODE)
    if error.kind in _BLOCKS:
        return Failure(Meaning.TRY_AGAIN, f"no DataNode gives the file's blocks ({error.kind})", BLOCKS)
    if error.kind in _OTHERS:
        return _OTHERS[error.kind]
    return Failure(Meaning.TRY_AGAIN, f"HDFS failed ({error.kind or 'no reason given'})", NAMENODE)


def _refusal(error: HadoopError, looked_in: str) -> Failure:
    if found := _REFUSED.search(error.text):
        reason = f"permission denied: the user {found[1]} has no right to {found[2]}"
        return Failure(Meaning.REFUSED, reason, RIGHTS)
    if "libgssapi" in error.text:
        return Failure(Meaning.FINAL, "the library of Kerberos is not installed", NO_LIBRARY)
    if error.kind in _TICKETS or "authentication is not enabled" in error.text:
        return Failure(Meaning.REFUSED, f"there is no valid Kerberos ticket or token: {looked_in}", TICKET)
    return Failure(Meaning.REFUSED, f"the credentials are refused, or have expired ({error.kind})", TICKET)


def _no_connection(text: str, away: str) -> Failure:
    if "CERTIFICATE" in text.upper():
        return Failure(Meaning.FINAL, "the server's certificate is not trusted, or for another host", CERTIFICATE)
    if any(each in text for each in _NO_ADDRESS):
        return Failure(Meaning.TRY_AGAIN, f"the NameNode's host has no address{away}", NAMENODE)
    reason = "no connection to HDFS" if "refused" in text.lower() else "the connection to HDFS broke"
    return Failure(Meaning.OPEN_AGAIN, f"{reason}{away}", NAMENODE)


def places_of(environ: Mapping[str, str], variables: Iterable[str]) -> str:
    """Return the variables that name credentials, and the files that they name."""
    return ", ".join(f"{name} is {environ.get(name) or 'not set'}" for name in variables)
