"""Files in a real HDFS that knows who asks, and encrypts all that it says: by tickets of a real KDC, by keytabs, and by
tokens of the NameNode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.object_store.hdfs_server import Door, Folder, HdfsServer, hdfs_server
from tests.support.object_store.kerberos import Kerberos, kerberos
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.hdfs import HadoopFiles
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError

pytestmark = pytest.mark.full

QUICK = StoreLimits(renew_ms=0, max_tries=2, first_wait_ms=1, max_wait_ms=5)
CONTENT = bytes(range(256)) * 4096 * 3
"""3 MiB: several packets of a DataNode, each encrypted."""

NO_TICKET = "there is no valid Kerberos ticket or token"
VARIABLES = ("KRB5CCNAME", "KRB5_CLIENT_KTNAME", "HADOOP_TOKEN_FILE_LOCATION")


@dataclass(frozen=True, slots=True)
class Secured:
    """An HDFS, its KDC, and the keytab of a user who may read."""

    kdc: Kerberos
    server: HdfsServer
    reader: Path

    def files(self, bucket: Folder, **environ: str) -> HadoopFiles:
        found = {"HADOOP_CONF_DIR": str(self.server.conf), **environ}
        return Door(self.server).files(bucket.name, "ckpt", limits=QUICK, environ=found)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with kerberos(tmp_path_factory.mktemp("kdc")) as kdc, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRB5_CONFIG", str(kdc.conf))
        with hdfs_server(tmp_path_factory.mktemp("hdfs"), kdc) as server:
            yield Secured(kdc, server, kdc.keytab("reader"))


@pytest.fixture
def bucket(secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Folder:
    """A folder with a file, in a process that has no ticket."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "no-tickets"))
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(tmp_path / "no-keytab"))
    found = secured.server.new_bucket()
    found.put("ckpt/1.sst", CONTENT)
    return found


def test_a_file_is_read_with_the_tickets_of_a_cache(
    secured: Secured, bucket: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", str(secured.kdc.tickets("reader", secured.reader)))
    files = secured.files(bucket)
    assert files.list("") == ["1.sst"]
    assert files.read("1.sst") == CONTENT
    assert files.stat("2.sst") is None


def test_a_keytab_gives_the_tickets_that_nobody_renews(
    secured: Secured, bucket: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(secured.reader))
    assert secured.files(bucket).read("1.sst") == CONTENT


def test_without_a_valid_ticket_nothing_is_absent_and_a_new_one_is_taken_up(
    secured: Secured, bucket: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = secured.files(bucket)
    with pytest.raises(CheckpointError, match=NO_TICKET) as error:
        without.stat("2.sst")
    assert "kinit" in (error.value.fix or "")
    monkeypatch.setenv("KRB5CCNAME", str(secured.kdc.tickets("reader", secured.reader, lifetime="3s")))
    wait_until(lambda: is_refused(secured.files(bucket)), what="the end of the ticket")
    expired = secured.files(bucket)
    assert is_refused(expired)
    secured.kdc.tickets("reader", secured.reader)
    assert expired.read("1.sst") == CONTENT
    assert without.stat("2.sst") is None


def test_a_user_without_rights_is_named_and_nothing_is_absent(
    secured: Secured, bucket: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.server.client().set_permission(f"/{bucket.name}/ckpt", 0o700)
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(secured.reader))
    with pytest.raises(CheckpointError, match="the user reader has no right to EXECUTE"):
        secured.files(bucket).stat("2.sst")


def test_a_delegation_token_is_enough(
    secured: Secured, bucket: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Spark has one written for its executors, and Hadoop's own tool does."""
    token = tmp_path / "token"
    environ = {**os.environ, "KRB5CCNAME": str(secured.kdc.tickets("reader", secured.reader))}
    secured.server.run("org.apache.hadoop.hdfs.tools.DelegationTokenFetcher", str(token), environ=environ)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(token))
    assert secured.files(bucket).read("1.sst") == CONTENT


def is_refused(files: HadoopFiles) -> bool:
    """Whether there is no valid ticket."""
    try:
        files.stat("2.sst")
    except CheckpointError as error:
        return NO_TICKET in error.what
    return False
