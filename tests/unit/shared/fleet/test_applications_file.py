"""The file of applications: what it says, what is wrong with it, and what changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError
from understudy_shared.fleet.applications_file import (
    ApplicationSpec,
    changes,
    normal_location,
    parse_applications,
)


def file_of(*tables: str) -> bytes:
    return "\n".join(f"[[applications]]\n{table}" for table in tables).encode()


ORDERS, CLICKS = 'id = "orders"\ncheckpoint = "/data/orders"', 'id = "clicks"\ncheckpoint = "s3://bucket/clicks"'


def test_it_says_what_is_own_and_leaves_the_rest_to_the_process() -> None:
    own = f'{ORDERS}\naliases = "names.toml"\nnum_standby_replicas = 0\noverlay_max_bytes = "8MiB"'
    orders, clicks = parse_applications(file_of(own, CLICKS))
    assert orders.overrides() == {
        "application_id": "orders",
        "checkpoint": "/data/orders",
        "aliases": Path("names.toml"),
        "num_standby_replicas": 0,
        "overlay_max_bytes": 8 << 20,
    }
    assert clicks.overrides() == {"application_id": "clicks", "checkpoint": "s3://bucket/clicks"}
    assert parse_applications(b"") == ()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (file_of(ORDERS, CLICKS, 'id = "orders"\ncheckpoint = "/x"'), "have the id 'orders' .* 1 and 3"),
        (file_of(ORDERS, 'id = "b"\ncheckpoint = "/data/./x/../orders/"'), "'orders' and 'b' have one checkpoint"),
        (file_of(CLICKS, 'id = "b"\ncheckpoint = "s3a://bucket//clicks"'), "'clicks' and 'b' have one checkpoint"),
        (file_of(f"{ORDERS}\nalias = 'x'"), "unknown key 'alias' .application 'orders'.*Did you mean 'aliases'"),
        (file_of(f"{ORDERS}\nmax_in_flight = 0"), "max_in_flight=0 is out of range .*at least 1"),
        (file_of(f"{ORDERS}\nnum_standby_replicas = 17"), "out of range .*0 to 16"),
        (file_of(f"{ORDERS}\nnum_standby_replicas = true"), "num_standby_replicas=True: Input should be"),
        (file_of(f"{ORDERS}\noverlay_max_bytes = '8 bananas'"), "overlay_max_bytes"),
        (file_of('id = "a/b"\ncheckpoint = "/x"'), "'a/b' cannot be the id"),
        (file_of('id = "fleet"\ncheckpoint = "/x"'), "the processes of a fleet have that name"),
        (file_of('checkpoint = "/x"'), "id is missing .*number 1.*Write id ="),
        (file_of('id = "a"'), "checkpoint is missing .application 'a'"),
        (b"[applications]\nid = 'a'", "must be a list of tables"),
        (b"[[application]]\nid = 'a'", "unknown table 'application'.*Did you mean 'applications'"),
        (b"[[applications", "not TOML"),
        (b"\xff", "not UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place_and_what_to_write(data: bytes, what: str) -> None:
    with pytest.raises(SettingsError, match=f"(?s).*{what}"):
        parse_applications(data)


@pytest.mark.parametrize(
    ("location", "form"),
    [
        ("/data/a/", "/data/a"),
        ("file:/data/a", "/data/a"),
        ("LOCAL:///data/a", "/data/a"),
        ("s3n://bucket/a/", "s3://bucket/a"),
        ("S3://Bucket", "s3://bucket"),
        ("hdfs:///", "hdfs://"),
        ("s3://bucket/../a", "s3://bucket/a"),
    ],
)
def test_one_checkpoint_has_one_form(location: str, form: str) -> None:
    assert normal_location(location) == form
    assert normal_location(form) == form


SPECS = st.lists(
    st.builds(
        ApplicationSpec,
        id=st.sampled_from("abcdef"),
        checkpoint=st.sampled_from(["/1", "/2", "/3"]),
        max_in_flight=st.sampled_from([None, 1]),
    ),
    unique_by=lambda spec: spec.id,
)


@given(SPECS, SPECS)
def test_the_changes_lead_from_one_content_to_the_other(
    before: list[ApplicationSpec], after: list[ApplicationSpec]
) -> None:
    found = changes(before, after)
    have = {each.id: each for each in before}
    for each in found.removed:
        del have[each]
    assert have.keys().isdisjoint(each.id for each in found.added)
    assert have.keys() >= {each.id for each in found.changed}
    have |= {each.id: each for each in (*found.added, *found.changed)}
    assert have == {each.id: each for each in after}
    assert bool(found.events()) == bool(found.added or found.removed or found.changed)
