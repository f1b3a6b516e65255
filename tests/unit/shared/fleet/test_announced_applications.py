"""Which applications a process wants because queries announced themselves, and from where."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from understudy_shared.fleet.announced_applications import (
    AnnouncedQueries,
    AnnouncedQuery,
    AnnouncedSpec,
    Below,
    Wanted,
    below,
    merged,
    parse_roots,
)
from understudy_shared.fleet.applications_file import ApplicationSpec, require_distinct

LOCAL, STORE, HDFS = "/data/checkpoints", "S3a://Bucket/teams/", "hdfs:///"
ALL_ROOTS = parse_roots(f"{LOCAL}, {STORE},{HDFS}")


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
    found = below(location, ALL_ROOTS)
    assert isinstance(found, Below)
    assert found.location == opened


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("/data/checkpoints-old/a", "below no"),
        ("/data/checkpoints/../secrets", "below no"),
        ("s3://bucket/team/a", "below no"),
        ("s3://key@bucket/teams/a", "below no"),
        ("s3://bucket:443/teams/a", "below no"),
        ("hdfs://other:8020/user/a", "below no"),
        ("file://host/data/checkpoints/a", "names a host"),
        ("file:data/checkpoints/a", "not an absolute path"),
        ("", "not an absolute path"),
        ("/data/checkpoints/a://b", "neither a path nor a URL"),
        ("/data/checkpoints/a\0b", "cannot be printed"),
        ("s3://bucket/teams/a?versionId=1", "a query"),
        ("s3://bucket/teams/%2e%2E/a", "an escaped slash, or dots"),
        ("s3://bucket/teams/a%252Fb", "an escaped slash, or dots"),
        (f"s3://bucket/teams/%{'25' * 12}2e", "an escaped slash, or dots"),
        ("filecache::s3://bucket/teams/a", "neither a path nor a URL"),
    ],
)
def test_what_lies_elsewhere_or_has_more_than_one_meaning_is_not_opened(location: str, why: str) -> None:
    found = below(location, ALL_ROOTS)
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
    found = below(location, ALL_ROOTS)
    if isinstance(found, str):
        return
    assert found.root in ALL_ROOTS
    beginning = found.root.location if found.root.location.endswith("/") else f"{found.root.location}/"
    assert found.location.startswith(beginning)
    names = found.location[len(beginning) :].split("/")
    assert names != [""]
    assert not {"", ".", ".."} & set(names)
    again = below(found.location, [found.root])
    assert again == found, "what is opened means the same when it is read again"


ROOTS = parse_roots("/data,s3://bucket/checkpoints")
ORDERS = ApplicationSpec(id="orders", checkpoint="/listed/orders", max_watchers=3)
FORGET_MS = 1_000_000


def ids(wanted: Wanted) -> list[str]:
    return [each.id for each in wanted.specs]


def test_a_query_below_a_root_is_wanted_beside_what_is_listed_and_the_list_wins() -> None:
    found = merged(
        [ORDERS],
        [AnnouncedQuery("clicks", "file:/data//clicks"), AnnouncedQuery("orders", "s3://elsewhere/orders")],
        ROOTS,
    )
    assert found.specs == (ORDERS, AnnouncedSpec(id="clicks", checkpoint="/data/clicks", root="/data"))
    assert found.specs[1].overrides() == {"application_id": "clicks", "checkpoint": "/data/clicks"}
    assert found.problems == ()
    conflict = merged([ORDERS], [AnnouncedQuery("orders", "/data/orders")], ROOTS)
    assert conflict.specs == (ORDERS,)
    assert conflict.problems == ("'orders' is listed with another checkpoint than '/data/orders'",)


def test_of_two_with_one_checkpoint_the_served_one_stays_until_it_is_quiet() -> None:
    old, new = AnnouncedQuery("zebra", "/data/q"), AnnouncedQuery("ape", "file:/data/q/")
    found = merged([], [old, new], ROOTS, served={"zebra"})
    assert ids(found) == ["zebra"]
    assert found.problems == ("'zebra', which is served, and 'ape' have one checkpoint",)
    assert ids(merged([], [old, new], ROOTS)) == ["ape"]
    assert ids(merged([], [old._replace(is_quiet=True), new], ROOTS, served={"zebra"})) == ["ape"]
    listed = merged([ORDERS.model_copy(update={"checkpoint": "/data/q"})], [new], ROOTS)
    assert (ids(listed), len(listed.problems)) == (["orders"], 1)


def test_what_cannot_be_an_id_or_lies_elsewhere_is_left_out_with_the_reason() -> None:
    located = {"..": "/data/a", "a/b": "/data/b", "c": "/other/c", "fleet": "/data/f"}
    found = merged([], [AnnouncedQuery(name, location) for name, location in located.items()], ROOTS)
    assert found.specs == ()
    assert {name: why.split(",")[0] for name, why in found.left_out.items()} == {
        "..": "'..' cannot be the id of an application",
        "a/b": "'a/b' cannot be the id of an application",
        "c": "it lies below no --checkpoint-root",
        "fleet": "'fleet' cannot be the id of an application: the processes of a fleet have that name",
    }
    assert merged([], [AnnouncedQuery("c", "/other/c")], ()).left_out.keys() == {"c"}


QUERIES = st.lists(
    st.builds(
        AnnouncedQuery,
        st.sampled_from(["a", "b", "c", "d", "a/b", ""]),
        st.sampled_from(["/data/1", "/data/2", "file:/data/1", "/data/../2", "s3://bucket/checkpoints/1", "/"]),
        is_idle=st.booleans(),
        is_quiet=st.booleans(),
    ),
    unique_by=lambda query: query.application_id,
)
LISTED = st.lists(
    st.builds(ApplicationSpec, id=st.sampled_from("abc"), checkpoint=st.sampled_from(["/data/1", "/data/3", "/4"])),
    unique_by=(lambda spec: spec.id, lambda spec: spec.checkpoint),
)


@given(LISTED, QUERIES, st.sets(st.sampled_from("abcd")))
def test_whatever_is_announced_the_list_stands_and_no_id_or_checkpoint_is_wanted_twice(
    listed: list[ApplicationSpec], queries: list[AnnouncedQuery], served: set[str]
) -> None:
    found = merged(listed, queries, ROOTS, served)
    assert list(found.listed) == listed
    require_distinct(found.specs)
    assert all(each.checkpoint.startswith(each.root or "s3://bucket/checkpoints/") for each in found.announced)
    assert merged(listed, reversed(queries), ROOTS, served) == found
    again = merged(listed, queries, ROOTS, {each.id for each in found.announced})
    assert again.announced == found.announced, "what is served stays when nothing changed"


def heard(*announcements: tuple[str, str, float]) -> AnnouncedQueries:
    queries = AnnouncedQueries(forget_after_ms=FORGET_MS)
    for application_id, location, now_ms in announcements:
        queries.hear(application_id, location, now_ms=now_ms)
    return queries


def test_a_query_is_idle_without_commits_and_announcements_and_no_longer_with_one() -> None:
    queries = heard(("a", "/data/1", 0))
    queries.commit("a", 7, now_ms=10)
    queries.commit("a", 7, now_ms=FORGET_MS)
    assert not queries.queries(now_ms=10 + FORGET_MS)[0].is_idle
    (found,) = queries.queries(now_ms=11 + FORGET_MS)
    assert (found.is_idle, found.is_quiet) == (True, True)
    assert merged([], [found], ROOTS).idle == {"a"}
    queries.commit("a", 8, now_ms=FORGET_MS + 12)
    assert not queries.queries(now_ms=FORGET_MS + 13)[0].is_idle
    queries.hear_all(now_ms=FORGET_MS + 14)
    assert queries.queries(now_ms=FORGET_MS + 15) == [AnnouncedQuery("a", "/data/1")]
    queries.forget(["a", "never heard"])
    assert "a" not in queries
