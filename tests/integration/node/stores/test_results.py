"""`result` beside `value` is what the query itself outputs; names and results come from a file or an announcement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import held
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS

from understudy_node.cluster.heartbeat import catalogue_of
from understudy_shared.base.words import Role
from understudy_shared.bus.messages import AnnouncedStore, Announcement, ResultColumn

LINEAGE = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedNode]:
    checkpoint = HandmadeCheckpoint(tmp_path / "counting").create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(2)
        yield node


def announced(*stores: AnnouncedStore, query_id: str = LINEAGE) -> Announcement:
    return Announcement(application_id="counting", query_id=query_id, stores=list(stores))


NAMED = AnnouncedStore(
    operator_id=0,
    name="words",
    key=["the word"],
    value=["seen", "added"],
    result=[
        ResultColumn(name="times", function="count", buffers=[0], type="bigint"),
        ResultColumn(name="all", function="sum", buffers=[1], type="long"),
    ],
)


def test_an_announcement_names_stores_and_results_while_they_are_served(served: ServedNode) -> None:
    node = served.node
    before = held(node)
    assert served.look_up([WORDS[0]]).body["value"] == {"count": 2, "total": 2_000_000}
    node.announce(announced(NAMED))
    served.wait_for_event("named")
    answer = served.look_up([WORDS[0]], store="words").body
    assert answer["key"] == {"the word": WORDS[0]}
    assert answer["value"] == {"seen": 2, "added": 2_000_000}
    assert answer["result"] == {"times": 2, "all": 2_000_000}
    assert served.look_up([WORDS[0]]).problem == "unknown-store"
    assert held(node) == before, "nothing was restored for a name"
    assert node.generation is not None
    (store,) = catalogue_of(node.generation, "counting").stores
    assert (store.store, store.key_names) == ("words", ["the word"])
    assert [column["name"] for column in store.result] == ["times", "all"]
    node.announce(None)
    served.wait_for_event("unnamed")
    assert served.look_up([WORDS[0]]).body["value"] == {"count": 2, "total": 2_000_000}


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (AnnouncedStore(operator_id=3, name="words"), "no operator 3"),
        (AnnouncedStore(operator_id=0, value=["a"]), "1 value names (a) for 2 columns"),
        (
            AnnouncedStore(
                operator_id=0, result=[ResultColumn(name="n", function="avg", buffers=[0, 1], type="double")]
            ),
            "avg cannot be computed exactly",
        ),
    ],
    ids=["operator", "value names", "function"],
)
def test_what_does_not_fit_is_left_out_with_an_event_and_serving_goes_on(
    served: ServedNode, store: AnnouncedStore, says: str
) -> None:
    served.node.announce(announced(store))
    served.wait_for_event("names left out")
    (event,) = [event for event in served.node.events if event.what == "names left out"]
    assert says in event.detail
    assert served.look_up([WORDS[0]]).body["value"] == {"count": 2, "total": 2_000_000}
    served.node.announce(announced(NAMED, store))
    served.wait_for_event("named")
    assert served.look_up([WORDS[0]], store="words").status == 200


def test_a_result_of_a_later_release_is_left_out_by_name_and_the_others_are_served(served: ServedNode) -> None:
    later = ResultColumn(name="cubes", function="sum_of_cubes", buffers=[1], type="long")
    served.node.announce(announced(NAMED.model_copy(update={"result": [*NAMED.result, later]})))
    served.wait_for_event("names left out")
    (event,) = [event for event in served.node.events if event.what == "names left out"]
    assert event.detail == "result cubes for operator 0: this release has no sum_of_cubes"
    assert served.look_up([WORDS[0]], store="words").body["result"] == {"times": 2, "all": 2_000_000}


def test_an_announcement_of_another_query_says_nothing_of_this_one(served: ServedNode) -> None:
    served.node.announce(announced(NAMED, query_id="another-life"))
    served.node.assign({"0_0": Role.ACTIVE})  # applied by the same turn as the names, or a later one
    served.wait_for_version(2, partitions=1)
    assert "named" not in served.events()
    assert served.get("/v1/stores/op0").status == 200
