"""Where HDFS is asked, by URL and configuration, and what its failures mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic

import pytest

from understudy_node.checkpoint import hdfs
from understudy_node.checkpoint.hdfs import (
    REST_S,
    HadoopError,
    Hdfs,
    KeptClients,
    hadoop_conf,
    hadoop_failure,
    places_of,
)
from understudy_node.checkpoint.store_files import Consequence, StoreLimits
from understudy_shared.base.errors import NotACheckpointError, SettingsError

CONF = {
    "fs.defaultFS": "hdfs://team",
    "dfs.ha.namenodes.team": " one , two ",
    "dfs.namenode.http-address.team.one": "a:1",
    "dfs.namenode.http-address.team.two": "b:2",
}
ENVIRON = {"HADOOP_CONF_DIR": "/conf"}


def reading(conf: Mapping[str, str]) -> Mapping[Path, str]:
    lines = "".join(f"<property><name>{name}</name>\n<value>{value}</value></property>" for name, value in conf.items())
    return {Path("/conf/core-site.xml"): f"<?xml version='1.0'?><configuration>{lines}</configuration>"}


@pytest.mark.parametrize(
    ("url", "conf", "authority"),
    [
        ("hdfs://host:9000/a/b", {}, "host:9000"),
        ("hdfs://host/a", {}, "host:8020"),
        ("hdfs://team/a", CONF, "team"),
        ("hdfs:///a", CONF, "team"),
        ("hdfs:///a", {"fs.defaultFS": "hdfs://host:9000/"}, "host:9000"),
        ("hdfs:///a", {"fs.defaultFS": "hdfs://host"}, "host:8020"),
    ],
)
def test_a_url_is_asked_where_hadoop_asks_it(url: str, conf: Mapping[str, str], authority: str) -> None:
    files = reading(conf)
    store = Hdfs(url, ENVIRON, files.get)
    assert store._authority(hadoop_conf(ENVIRON, files.get))[0] == authority


def test_a_checkpoint_is_below_the_url_s_path_as_it_is_written() -> None:
    for url, root in (
        ("hdfs://h/a b/100%25 ü/", "/a b/100%25 ü"),
        ("hdfs://h", ""),
        ("hdfs://h/", ""),
        ("hdfs:///x", "/x"),
    ):
        assert Hdfs(url, {}).root == root
    assert Hdfs("hdfs://h:1/a/", {}).url == "hdfs://h:1/a"


@pytest.mark.parametrize("url", ["hdfs://ann@host/a", "hdfs://host:port/a", "hdfs://ho st/a", "hdfs:/a"])
def test_what_is_no_url_of_hdfs_is_refused(url: str) -> None:
    with pytest.raises(NotACheckpointError, match="not a location in HDFS"):
        Hdfs(url, {})


def test_a_url_without_a_host_needs_a_default() -> None:
    with pytest.raises(SettingsError, match=r"fs\.defaultFS no HDFS"):
        Hdfs("hdfs:///a", {}).open(StoreLimits())
    with pytest.raises(SettingsError, match=r"fs\.defaultFS no HDFS"):
        Hdfs("hdfs:///a", ENVIRON, reading({"fs.defaultFS": "file:///"}).get).open(StoreLimits())


def test_a_configuration_that_does_not_parse_is_named() -> None:
    files = {Path("/conf/hdfs-site.xml"): "<configuration><property>"}
    with pytest.raises(SettingsError, match="The file is not XML") as error:
        Hdfs("hdfs://host/a", ENVIRON, files.get).open(StoreLimits())
    assert error.value.where == "/conf/hdfs-site.xml"
    assert hadoop_conf({"HADOOP_HOME": "/home"}, {Path("/home/etc/hadoop/core-site.xml"): "<c/>"}.get) == {}


@pytest.mark.parametrize(
    ("kind", "text", "meaning", "reason"),
    [
        ("org.apache.hadoop.ipc.StandbyException", "", Consequence.OPEN_AGAIN, "on standby"),
        (
            "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
            "is in safe mode",
            Consequence.TRY_AGAIN,
            "safe mode",
        ),
        ("org.apache.hadoop.ipc.RetriableException", "Name node is in safe mode.", Consequence.TRY_AGAIN, "safe mode"),
        (
            "org.apache.hadoop.security.AccessControlException",
            'Permission denied: user=ann, access=EXECUTE, inode="/safe mode":root:root:drwx------',
            Consequence.REFUSED,
            "the user ann has no right to EXECUTE",
        ),
        (
            "org.apache.hadoop.security.AccessControlException",
            "SIMPLE authentication is not enabled.  Available:[TOKEN, KERBEROS]",
            Consequence.REFUSED,
            "no valid Kerberos ticket",
        ),
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken", "hush", Consequence.REFUSED, "InvalidToken"),
        (
            "GSSAPIError",
            "No Kerberos credentials available",
            Consequence.REFUSED,
            "no valid Kerberos ticket or token: KRB5CCNAME is /tickets, KRB5_CLIENT_KTNAME is not set",
        ),
        ("OperationFailed", "Failed to load libgssapi_krb5", Consequence.FINAL, "library of Kerberos is not installed"),
        ("DataTransferError", "All DataNodes failed: []", Consequence.TRY_AGAIN, "no DataNode gives"),
        ("UnsupportedFeature", "File encryption", Consequence.FINAL, "encrypted"),
        ("java.io.IOException", "hush", Consequence.TRY_AGAIN, "IOException"),
    ],
)
def test_the_class_of_an_exception_says_what_it_means(kind: str, text: str, meaning: Consequence, reason: str) -> None:
    failure = hadoop_failure(HadoopError(kind, text), places_of({"KRB5CCNAME": "/tickets"}))
    assert failure.meaning is meaning
    assert reason in failure.reason
    assert "hush" not in failure.reason + failure.fix


@pytest.mark.parametrize(
    ("kind", "text", "is_absence"),
    [
        ("java.io.FileNotFoundException", "", True),
        ("org.apache.hadoop.fs.ParentNotDirectoryException", "", True),
        ("org.apache.hadoop.security.AccessControlException", "/x/metadata (is not a directory)", True),
        ("org.apache.hadoop.security.AccessControlException", "Permission denied", False),
        ("org.apache.hadoop.ipc.StandbyException", "FileNotFoundException", False),
    ],
)
def test_absence_is_what_hdfs_itself_calls_so(kind: str, text: str, is_absence: bool) -> None:
    assert HadoopError(kind, text).is_absence is is_absence


def test_a_client_ends_only_when_it_has_rested() -> None:
    """Its end holds the interpreter's lock, for which an answer that comes in that moment waits."""
    kept, first, second = KeptClients(), object(), object()
    kept.keep(first, instead_of=None, now_s=0.0)
    kept.keep(second, instead_of=first, now_s=1e6)
    kept.keep(object(), instead_of=second, now_s=1e6 + REST_S)
    assert len(kept) == 3
    kept.keep(object(), instead_of=None, now_s=1e6 + REST_S + 1)
    assert len(kept) == 3, "the first is gone; the second rests, and two are in use"


def test_the_client_of_an_unused_checkpoint_rests_and_then_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process opens an application again and again until its query has started."""
    kept = KeptClients()
    monkeypatch.setattr(hdfs, "KEPT", kept)
    monkeypatch.setattr(hdfs, "AsyncClient", lambda *_: object())
    for _ in range(3):
        Hdfs("hdfs://namenode:8020/a", {}).open(StoreLimits())
    kept.keep(object(), instead_of=None, now_s=monotonic() + REST_S + 1)
    assert len(kept) == 1
