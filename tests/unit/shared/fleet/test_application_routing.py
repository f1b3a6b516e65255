"""A request goes to the application that it names, or to the only one that it can mean."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError
from understudy_shared.fleet.applications_file import require_id
from understudy_shared.fleet.dispatching import Chosen, chosen
from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.http.target import application_target, refuse_unroutable


class Has:
    """An application with stores."""

    def __init__(self, *stores: str) -> None:
        self.stores = stores

    def has_store(self, store: str) -> bool:
        return store in self.stores


FLEET = {"orders": Has("op0", "totals"), "clicks": Has("op0"), "späte": Has()}


def always(_: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("target", "application", "inner"),
    [
        (b"/v1/applications/orders/stores/op0/keys/7?max_lag=1", "orders", b"/v1/stores/op0/keys/7?max_lag=1"),
        (b"/v1/applications/sp%C3%A4te/read", "späte", b"/v1/read"),
        (b"/admin/v1/applications/clicks/lag", "clicks", b"/admin/v1/lag"),
        (b"/admin/applications/clicks/", "clicks", b"/admin/"),
        (b"/v1/stores/totals/scan", "orders", b"/v1/stores/totals/scan"),
    ],
)
def test_the_application_is_named_or_the_only_one_with_the_store(target: bytes, application: str, inner: bytes) -> None:
    assert chosen(target, FLEET, always) == Chosen(application, inner)


def test_a_store_of_several_applications_is_refused_with_their_names() -> None:
    with pytest.raises(ProblemError) as refused:
        chosen(b"/v1/stores/op0/keys/7", FLEET, always)
    assert refused.value.problem.type is ProblemType.AMBIGUOUS_STORE
    assert refused.value.problem.extra["applications"] == ["clicks", "orders"]


def test_a_store_that_an_application_may_have_later_is_not_called_unknown() -> None:
    with pytest.raises(ProblemError) as refused:
        chosen(b"/v1/stores/late/keys/7", FLEET, lambda each: each != "späte")
    assert refused.value.problem.type is ProblemType.NOT_INITIALISED
    assert "späte" in refused.value.problem.detail
    with pytest.raises(ProblemError) as refused:
        chosen(b"/v1/stores/late/keys/7", FLEET, always)
    assert refused.value.problem.type is ProblemType.UNKNOWN_STORE


NAMES = st.text(min_size=1, max_size=300)


@given(NAMES)
def test_an_id_is_usable_exactly_if_its_path_leads_back_to_it(name: str) -> None:
    try:
        usable = require_id(name)
    except SettingsError:
        return
    raw = f"/v1/applications/{quote(usable, safe='')}/stores/s/keys/k".encode()
    refuse_unroutable(raw)
    assert application_target(raw)[1] == b"/v1/stores/s/keys/k"
    assert chosen(raw, {usable: Has(), "other": Has()}, always) == Chosen(usable, b"/v1/stores/s/keys/k")
