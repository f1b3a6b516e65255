"""A catalogue holds all that a router needs to encode and place keys, and is the same on every node of a layout."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.spark.counting_query import WORDS

from understudy_node.cluster.heartbeat import catalogue_of
from understudy_shared.base.words import Role, StoreName
from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import Catalogue
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import parse_schema


def test_a_codec_made_of_the_catalogue_encodes_and_places_keys_as_the_node_does(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", "0_2", "0_3")
        assert node.generation is not None
        catalogue = catalogue_of(node.generation, "words")
        sent = Catalogue.decode(catalogue.encode(), application_id="words", where="here")
        (store,) = sent.stores
        codec = KeyCodec(
            parse_schema(store.key_schema),
            names=store.key_names,
            num_hash_columns=store.num_hash_columns,
            is_normalised=store.is_normalised,
        )
        holding = node.generation.readers[StoreName(store.store)]
        for word in WORDS:
            row = codec.parse_json([word])
            key = holding.resolve((word,))
            assert (codec.partition(row, store.partitions), codec.encode(row)) == (key.partition, key.stored)
        assert (sent.lineage, sent.partitions, sent.not_served) == (node.lineage, 4, [])
        assert [column["name"] for column in store.value] == ["count", "total"]
        (schema,) = store.schemas
        assert [column["name"] for column in schema.value] == ["count", "total"]
        assert [column["name"] for column in schema.key] == ["word"]


def test_what_a_node_holds_does_not_change_its_catalogue(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    digests = set()
    with followed_node(checkpoint.path, tmp_path / "data", duties={}) as node:
        for tasks in ([], ["0_0"], ["0_0", "0_1"]):
            node.assign(dict.fromkeys(tasks, Role.ACTIVE))
            wait_to_hold(node, *tasks)
            assert node.generation is not None
            digests.add(digest_of(catalogue_of(node.generation, "words")))
    assert len(digests) == 1
