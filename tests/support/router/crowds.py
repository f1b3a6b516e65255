"""Candidates of one task in every condition that tables can tell of, and bounds of every kind, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.support.router.tables import LINEAGE, candidate

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.health import Health
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.bounds import Bound, UnknownLag
from understudy_shared.reads.tokens import Position

LIMITS = st.none() | st.integers(0, 12)
BOUNDS = st.builds(
    Bound,
    max_lag=LIMITS,
    max_staleness_ms=LIMITS,
    min_position=st.none()
    | st.builds(Position, st.just(ApplicationId("flights")), st.just(Lineage(LINEAGE)), st.integers(0, 12), st.none()),
    require_active=st.booleans(),
    unknown_lag=st.none() | st.sampled_from(UnknownLag),
)


@st.composite
def crowds(draw: st.DrawFn) -> list[Candidate]:
    """Up to six nodes of which at most one is active, in every condition that tables can tell of."""
    node_ids = draw(st.lists(st.sampled_from("abcdef"), unique=True))
    found = []
    for place, node_id in enumerate(node_ids):
        heard = draw(st.booleans()) or draw(st.booleans())
        version = draw(st.none() | st.integers(0, 12)) if heard else None
        found.append(
            candidate(
                node_id,
                role="active" if place == 0 and draw(st.booleans()) else draw(st.sampled_from(["standby", "warmup"])),
                state=draw(st.sampled_from(["RUNNING", "RESTORING"])) if heard else None,
                version=version,
                offset_lag=None if version is None else draw(LIMITS),
                time_lag_ms=None if version is None else draw(LIMITS),
                is_heard=heard,
                is_live=draw(st.booleans()) or draw(st.booleans()),
                health=draw(st.sampled_from([Health.OK, Health.OK, *Health])) if heard else Health.OK,
                is_draining=draw(st.booleans()),
                has_lineage=draw(st.booleans()) or draw(st.booleans()),
                lineage=draw(st.none() | st.just(LINEAGE)),
                has_layout=draw(st.booleans()) or draw(st.booleans()),
            )
        )
    return found
