"""Each call of a fleet's document is answered as grants say, to keys whose grants hold everywhere, in some
applications, or in others alone. `test_access_matrix.py` has what each right means where there is one application.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.services.guarded_fleet import World, fleet_world

from understudy_shared.http.openapi.document import document

HERE, STORE = "orders-1", "only-1"
OF_ANY_KEY = {"list_applications", "list_all_stores", "openapi", "docs"}
POINT = ("/keys/k", "/lookup", "/history", "/history/k", "/metadata", "/metadata/k")

ALL = dict.fromkeys(("reader", "monitor", "admin", "orders", "first", "operator", "late"), 200)
MATRIX: dict[str, dict[str, int]] = {
    "any key": ALL,
    "sees it": {**ALL, "late": 404},
    "reads": {**ALL, "monitor": 403, "admin": 403, "operator": 403, "first": 404, "late": 404},
    "monitors": {**ALL, "reader": 403, "first": 403, "late": 404},
    "changes": {**ALL, "reader": 403, "monitor": 403, "orders": 403, "first": 403, "late": 404},
    "monitors some": {**ALL, "reader": 403, "first": 403},
    "monitors all": {**ALL, "reader": 403, "orders": 403, "first": 403, "operator": 403, "late": 403},
    "changes all": dict.fromkeys(ALL, 403) | {"admin": 200},
}
"""By what a call needs: the answer to each key. `orders` may read and monitor in `orders-*`, `operator` may change
`orders-1`, `first` reads another store of it, and `late` reads and changes another application.
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fleet_world(tmp_path_factory.mktemp("fleet"))


def calls() -> Iterator[tuple[str, str, str]]:
    for path, methods in document("router", is_fleet=True, is_guarded=True)["paths"].items():
        for method, call in methods.items():
            yield method.upper(), path, _need(method, path, call)


def _need(method: str, path: str, call: Any) -> str:
    name = call["operationId"]
    if call.get("security") == []:
        return "nothing"
    if name in OF_ANY_KEY:
        return "any key"
    if name == "overview_of_applications":
        return "monitors some"
    if path.startswith("/admin/") or name == "metrics":
        change = "monitors" if method == "get" else "changes"
        return change if "{application}" in path else f"{change} all"
    if "{store}" in path and name not in {"describe_store", "find_store"}:
        return "reads"
    return "sees it"


@pytest.mark.parametrize(("method", "path", "need"), list(calls()))
async def test_every_call_of_a_fleet_answers_each_key_as_its_grants_say(
    world: World, method: str, path: str, need: str
) -> None:
    target = path.replace("{application}", HERE).replace("{store}", STORE).replace("{node_id}", "n1")
    target = target.replace("{key}", "k").replace("{snapshot}", "us1.x").replace("{ending}", "csv")
    expected = dict.fromkeys(ALL, 200) if need == "nothing" else MATRIX[need]
    if need == "reads" and not target.endswith(POINT):
        expected = {**expected, "orders": 403}  # it may read keys alone
    if "{store}" in path and need == "sees it":
        expected = {**expected, "first": 404}  # its grant names another store
    if path == "/v1/stores/{store}":
        expected = {**expected, "late": 200}  # it sees one application alone, which is asked for every store
    for who, status in [*expected.items(), (None, 200 if need == "nothing" else 401)]:
        got, body, _ = await world.ask(who, target, method=method)
        assert got == status, (who, body)
