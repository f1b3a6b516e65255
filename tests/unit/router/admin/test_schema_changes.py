"""What differs between two catalogues is said by store and column, a line of each kind, however many there are."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.router.tables import APPLICATION, LINEAGE

from understudy_router.admin.sampling import KINDS, schema_changes
from understudy_router.cluster.catalogue import Stores, stores_of
from understudy_shared.bus.messages import Catalogue, CatalogueStore

COUNT = {"name": "count", "type": "bigint", "nullable": False}
DELAY = {"name": "delay", "type": "double", "nullable": True}


def key(*columns: tuple[str, str]) -> str:
    fields = ",".join(f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}' for name, kind in columns)
    return f'{{"type":"struct","fields":[{fields}]}}'


def stored(name: str = "words", **fields: Any) -> CatalogueStore:
    columns = fields.pop("columns", (("word", "string"),))
    values: dict[str, Any] = {
        "operator_id": 0,
        "operator": "stateStoreSave",
        "key_schema": key(*columns),
        "key_names": [column for column, _ in columns],
        "partitions": 4,
        "value": [COUNT],
        **fields,
    }
    return CatalogueStore(store=name, **values)


def catalogue(
    digest: str, *stores: CatalogueStore, lineage: str = LINEAGE, not_served: list[dict[str, str | int]] | None = None
) -> Stores:
    made = Catalogue(
        application_id=APPLICATION, lineage=lineage, partitions=4, stores=list(stores), not_served=not_served or []
    )
    return stores_of(made, digest)


def said(before: Stores | None, after: Stores | None) -> list[tuple[str, str]]:
    return list(schema_changes(before, after))


def test_columns_that_came_went_or_have_another_type_are_named() -> None:
    before = catalogue("1", stored(value=[COUNT, DELAY]))
    assert said(before, catalogue("2", stored())) == [("schema-changed", "words: value column delay is gone")]
    assert said(catalogue("2", stored()), before) == [("schema-changed", "words: new value column delay, double")]
    other = {**DELAY, "type": "decimal(10,2)"}
    assert said(before, catalogue("2", stored(value=[COUNT, other]))) == [
        ("schema-changed", "words: value column delay is decimal(10,2), before double")
    ]
    assert said(before, catalogue("2", stored(value=[DELAY, COUNT]))) == [
        ("schema-changed", "words: value columns in another order")
    ]


STORES = st.lists(
    st.builds(
        stored,
        st.text("abc<>", min_size=1, max_size=200),
        value=st.lists(
            st.fixed_dictionaries({"name": st.text(max_size=200), "type": st.text(max_size=400)}), max_size=5
        ),
        partitions=st.integers(1, 9),
        operator_id=st.integers(0, 3),
    ),
    max_size=4,
    unique_by=lambda each: each.store,
)


@settings(max_examples=30)
@given(STORES, STORES)
def test_there_is_at_most_a_line_of_each_kind_and_each_is_short(
    before: list[CatalogueStore], after: list[CatalogueStore]
) -> None:
    old, new = catalogue("1", *before), catalogue("2", *after)
    lines = said(old, new)
    assert len({kind for kind, _ in lines} & set(KINDS)) == len(lines)
    assert all(len(detail) < 3000 for _, detail in lines)
    kinds = {kind for kind, _ in lines}
    assert ("store-added" in kinds) == bool(new.by_name.keys() - old.by_name.keys())
    assert ("store-removed" in kinds) == bool(old.by_name.keys() - new.by_name.keys())
    assert said(new, catalogue("2", *after)) == []
