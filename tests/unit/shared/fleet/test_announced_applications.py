"""Which applications a process wants because queries announced themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.fleet.announced_applications import (
    AnnouncedQueries,
    AnnouncedSpec,
    Query,
    Wanted,
    merged,
    parse_roots,
)
from understudy_shared.fleet.applications_file import ApplicationSpec, require_distinct

ROOTS = parse_roots("/data,s3://bucket/checkpoints")
ORDERS = ApplicationSpec(id="orders", checkpoint="/listed/orders", max_watchers=3)
FORGET_MS = 1_000_000


def ids(wanted: Wanted) -> list[str]:
    return [each.id for each in wanted.specs]


def test_a_query_below_a_root_is_wanted_beside_what_is_listed_and_the_list_wins() -> None:
    found = merged([ORDERS], [Query("clicks", "file:/data//clicks"), Query("orders", "s3://elsewhere/orders")], ROOTS)
    assert found.specs == (ORDERS, AnnouncedSpec(id="clicks", checkpoint="/data/clicks", root="/data"))
    assert found.specs[1].overrides() == {"application_id": "clicks", "checkpoint": "/data/clicks"}
    assert found.problems == ()
    conflict = merged([ORDERS], [Query("orders", "/data/orders")], ROOTS)
    assert conflict.specs == (ORDERS,)
    assert conflict.problems == ("'orders' is listed with another checkpoint than '/data/orders'",)


def test_of_two_with_one_checkpoint_the_served_one_stays_until_it_is_quiet() -> None:
    old, new = Query("zebra", "/data/q"), Query("ape", "file:/data/q/")
    found = merged([], [old, new], ROOTS, served={"zebra"})
    assert ids(found) == ["zebra"]
    assert found.problems == ("'zebra', which is served, and 'ape' have one checkpoint",)
    assert ids(merged([], [old, new], ROOTS)) == ["ape"]
    assert ids(merged([], [old._replace(is_quiet=True), new], ROOTS, served={"zebra"})) == ["ape"]
    listed = merged([ORDERS.model_copy(update={"checkpoint": "/data/q"})], [new], ROOTS)
    assert (ids(listed), len(listed.problems)) == (["orders"], 1)


def test_what_cannot_be_an_id_or_lies_elsewhere_is_left_out_with_the_reason() -> None:
    located = {"..": "/data/a", "a/b": "/data/b", "c": "/other/c", "fleet": "/data/f"}
    found = merged([], [Query(name, location) for name, location in located.items()], ROOTS)
    assert found.specs == ()
    assert {name: why.split(",")[0] for name, why in found.left_out.items()} == {
        "..": "'..' cannot be the id of an application",
        "a/b": "'a/b' cannot be the id of an application",
        "c": "it lies below no --checkpoint-root",
        "fleet": "'fleet' cannot be the id of an application: the processes of a fleet have that name",
    }
    assert merged([], [Query("c", "/other/c")], ()).left_out.keys() == {"c"}


QUERIES = st.lists(
    st.builds(
        Query,
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
    listed: list[ApplicationSpec], queries: list[Query], served: set[str]
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
    assert queries.queries(now_ms=FORGET_MS + 15) == [Query("a", "/data/1")]
    queries.forget(["a", "never heard"])
    assert "a" not in queries
