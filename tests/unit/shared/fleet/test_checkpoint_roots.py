"""Which announced locations lie below a root, and what is opened for them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from understudy_shared.fleet.announced_applications import Below, below, parse_roots

LOCAL, STORE, HDFS = "/data/checkpoints", "S3a://Bucket/teams/", "hdfs:///"
ROOTS = parse_roots(f"{LOCAL}, {STORE},{HDFS}")


@pytest.mark.parametrize(
    ("location", "opened"),
    [
        ("/data/checkpoints/a", "/data/checkpoints/a"),
        ("file:/data/checkpoints/a/", "/data/checkpoints/a"),
        ("FILE:///data//checkpoints/./b/../a", "/data/checkpoints/a"),
        ("local:/data/checkpoints/a%20b", "/data/checkpoints/a%20b"),
        ("s3://bucket/teams//x/a/", "s3a://Bucket/teams/x/a"),
        ("s3n://BUCKET/other/../teams/a", "s3a://Bucket/teams/a"),
        ("s3://bucket/teams/a%20b", "s3a://Bucket/teams/a%20b"),
        ("HDFS:///user/a", "hdfs:///user/a"),
    ],
)
def test_below_a_root_the_root_is_opened_as_it_was_given_and_plain_names_below_it(location: str, opened: str) -> None:
    found = below(location, ROOTS)
    assert isinstance(found, Below)
    assert found.location == opened


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("/data/checkpoints", "below no"),
        ("/data/checkpoints-old/a", "below no"),
        ("/data/checkpoints/../secrets", "below no"),
        ("file:/data/checkpoints/a/../..", "below no"),
        ("s3://bucket/team/a", "below no"),
        ("s3://bucket/teams/..", "below no"),
        ("s3://key@bucket/teams/a", "below no"),
        ("s3://bucket:443/teams/a", "below no"),
        ("gs://bucket/teams/a", "below no"),
        ("hdfs://other:8020/user/a", "below no"),
        ("hdfs://", "below no"),
        ("file://host/data/checkpoints/a", "names a host"),
        ("file:data/checkpoints/a", "not an absolute path"),
        ("data/checkpoints/a", "not an absolute path"),
        ("~/a", "not an absolute path"),
        ("", "not an absolute path"),
        ("/data/checkpoints/a://b", "neither a path nor a URL"),
        ("/data/checkpoints/a\0b", "cannot be printed"),
        ("s3://bucket/teams/a\nb", "cannot be printed"),
        ("s3://bucket/teams/a?versionId=1", "a query"),
        ("s3://bucket/teams/a#b", "a query"),
        ("s3://bucket/teams/%2e%2E/a", "an escaped slash, or dots"),
        ("s3://bucket/teams/a%252Fb", "an escaped slash, or dots"),
        ("s3://bucket/teams/a%5cb", "an escaped slash, or dots"),
        (f"s3://bucket/teams/%{'25' * 12}2e", "an escaped slash, or dots"),
        ("filecache::s3://bucket/teams/a", "neither a path nor a URL"),
    ],
)
def test_what_lies_elsewhere_or_has_more_than_one_meaning_is_not_opened(location: str, why: str) -> None:
    found = below(location, ROOTS)
    assert isinstance(found, str)
    assert why in found


PIECES = st.sampled_from(
    ["/", "//", ":", "://", "..", ".", "a", "data", "checkpoints", "s3", "s3a", "S3N", "file", "hdfs", "bucket",
     "Bucket", "teams", "%2e", "%2F", "%25", "@", "\\", "?", "#", "::", "\0", "ü", "~", ",", " "]
)  # fmt: skip
LOCATIONS = st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=40)
BEGINNINGS = st.sampled_from(["", "/data/checkpoints/", "file:/data/checkpoints/", "s3://bucket/teams/", "hdfs:///"])


@given(st.tuples(BEGINNINGS, LOCATIONS).map("".join))
@example("hdfs:////other:8020/a")
@example("/data/..://checkpoints/../x")
def test_nothing_outside_a_root_is_ever_opened(location: str) -> None:
    found = below(location, ROOTS)
    if isinstance(found, str):
        return
    assert found.root in ROOTS
    beginning = found.root.location if found.root.location.endswith("/") else f"{found.root.location}/"
    assert found.location.startswith(beginning)
    names = found.location[len(beginning) :].split("/")
    assert names != [""]
    assert not {"", ".", ".."} & set(names)
    again = below(found.location, [found.root])
    assert again == found, "what is opened means the same when it is read again"
