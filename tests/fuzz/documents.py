"""One valid document of each kind: what bad ones are made of."""

from __future__ import annotations

from tests.support.bus.documents import APPLICATION, enveloped, heartbeat
from tests.support.cluster.fake_cluster import catalogue

from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import (
    AnnouncedStore,
    Announcement,
    Applied,
    AssignedTask,
    Assignment,
    Catalogue,
    CommitHint,
    Farewell,
    Message,
    NodeEndpoint,
    ResultColumn,
)

CATALOGUE: Catalogue = catalogue(partitions=2)
WIDE = CATALOGUE.model_copy(
    update={
        "stores": [
            CATALOGUE.stores[0].model_copy(
                update={
                    "key_schema": '{"type":"struct","fields":[{"name":"a","type":"decimal(10,2)","nullable":true,'
                    '"metadata":{}},{"name":"b","type":{"type":"struct","fields":[{"name":"start","type":"timestamp",'
                    '"nullable":true,"metadata":{}},{"name":"end","type":{"type":"array","elementType":"long",'
                    '"containsNull":true},"nullable":true,"metadata":{}}]},"nullable":true,"metadata":{}}]}',
                    "key_names": ["a", "b"],
                    "num_hash_columns": 1,
                }
            )
        ],
        "not_served": [{"operator_id": 1, "operator": "x", "reason": "y"}],
    }
)
ASSIGNMENT = Assignment(
    application_id=APPLICATION,
    term=1,
    epoch=1,
    written_by="n1",
    lineage="l1",
    partitions=2,
    tasks={"0_0": AssignedTask(active="n1", standbys=("n2",)), "0_1": AssignedTask(active="n2", warmups=("n1",))},
    members={"n1": NodeEndpoint(host="127.0.0.1", port=7101), "n2": NodeEndpoint(host="::1", port=7102)},
    draining=["n2"],
)
HEARTBEAT = heartbeat(
    zone="z",
    partitions=2,
    exceptions={"0_1": Applied(version=None, state="RESTORING", error="x")},
    held=["0_0", "0_1"],
    catalogue=digest_of(CATALOGUE),
    checkpoint="/data",
)
SPOKEN: tuple[Message, ...] = (
    HEARTBEAT,
    ASSIGNMENT,
    Farewell(application_id=APPLICATION, node_id="n1", incarnation="i1"),
    CommitHint(application_id=APPLICATION, version=7),
    Announcement(
        application_id=APPLICATION,
        query_id="l1",
        stores=[
            AnnouncedStore(
                operator_id=0,
                name="words",
                key=["word"],
                value=["count"],
                result=[ResultColumn(name="n", function="avg", buffers=[0, 1], type="double")],
            )
        ],
    ),
)


def envelope_of(message: Message) -> bytes:
    """The first line of a message, with its end."""
    return enveloped(message).partition(b"\n")[0] + b"\n"
