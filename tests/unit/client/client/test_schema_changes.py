"""A schema that changes under a client: new columns are left out, others are named, and a new store is bound anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.clients.steps import World, answer, found
from tests.support.typed.entries import entry_of, struct

from understudy.client.core.exchange import Outcome, Send
from understudy.client.core.lookups import get
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.results import Result
from understudy.typed.python_types import ModelError, UnfitValueError
from understudy_shared.spark import types as spark

OLD = entry_of(struct(count=spark.LongType()), struct(word=spark.StringType()))
OTHER = entry_of(struct(count=spark.StringType()), struct(word=spark.StringType()))
NARROWER = entry_of(struct(note=spark.StringType()), struct(word=spark.StringType()))


@dataclass
class Words:
    count: int | None


class Query:
    """A store whose query is restarted with another schema. It counts how often its schema is asked for."""

    def __init__(self) -> None:
        self.schema: dict[str, Any] = OLD
        self.value: dict[str, Any] = {"count": 7}
        self.asked = 0
        self.world = World(self._served)
        self.reader = Reader(self.world.state())

    def becomes(self, schema: dict[str, Any], value: dict[str, Any]) -> None:
        self.schema, self.value = schema, value

    def store(self, value: type) -> BoundStore:
        return BoundStore(self.reader, "words", value=value)

    def get(self, store: BoundStore) -> Result[Any]:
        return self.world.run(get(store, ["a"], {}, self.world.now_s + 5))

    def _served(self, send: Send, _: World) -> Outcome:
        if send.request.target == "/v1/stores/words":
            self.asked += 1
            return answer(self.schema)
        return answer({**found("a"), "value": self.value})


@pytest.mark.parametrize(
    ("schema", "value", "column"),
    [(OTHER, {"count": "eight"}, "count"), (NARROWER, {"note": "x"}, "count")],
    ids=["another type", "a column that is gone"],
)
def test_a_column_that_does_not_fit_any_more_is_named_and_no_value_is_made_up(
    schema: dict[str, Any], value: dict[str, Any], column: str
) -> None:
    query = Query()
    store = query.store(Words)
    query.get(store)
    query.becomes(schema, value)
    result = query.get(store)
    with pytest.raises(UnfitValueError, match=column) as raised:
        _ = result.value
    assert "bind it again" in raised.value.fix
    assert result.raw["value"] == value, "the plain answer can be read"
    with pytest.raises(ModelError, match=column):
        query.get(query.store(Words))
