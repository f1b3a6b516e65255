"""What watchers of a router get from one feed, whatever happens: each change of their keys, once and in order.

Both sides of a feed are the product's: what a node chooses to send, and what a router makes of it. The wire between
them is a list of events that the test delays, cuts, and begins anew at another node, which may be behind. The true
history stands beside.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.router.fed_watchers import Client, Router, Step
from tests.support.router.feeding_node import KEYS, Truth

from understudy_shared.questions.watch import hop as watch_feed_state


@pytest.fixture(autouse=True, scope="module")
def slices_of_one() -> Iterator[None]:
    """Watchers look between any two events that count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_feed_state, "COUNTED_AT_ONCE", 1)
        yield


def commit(changed: set[int]) -> Step:
    return lambda router: router.truth.history.append(changed)


def show(more: int) -> Step:
    return lambda router: router.node.show(min(router.truth.newest, router.node.part.version + more))


def send(size: int) -> Step:
    return lambda router: router.node.send(size)


def read(events: int) -> Step:
    def step(router: Router) -> None:
        for _ in range(min(events, len(router.node.sent))):
            router.read()

    return step


def join(indexes: list[int], is_quick: bool) -> Step:
    return lambda router: router.clients.append(Client(router, indexes, is_quick))


def read_slowly(which: int) -> Step:
    def step(router: Router) -> None:
        for client in router.clients[which : which + 1]:
            client.take(reads=True)

    return step


def leave(which: int) -> Step:
    def step(router: Router) -> None:
        del router.clients[which : which + 1]
        router.drop_unused()

    return step


def come_back(which: int) -> Step:
    """A watcher is cut off, and comes back with its last position."""

    def step(router: Router) -> None:
        for client in router.clients[which : which + 1]:
            after = None if client.position < 0 else client.position
            router.clients[which] = Client(router, client.indexes, client.is_quick, after=after)

    return step


def die(shown: int) -> Step:
    return lambda router: router.reconnect(shown)


def amid(step: Step) -> Step:
    return lambda router: router.amid.append(step)


indexes = st.lists(st.integers(0, KEYS - 1), min_size=1, unique=True)
steps = st.one_of(
    st.builds(commit, st.sets(st.integers(0, KEYS - 1))),
    st.builds(show, st.integers(1, 3)),
    st.builds(send, st.sampled_from([1, 25, 1000])),
    st.builds(read, st.integers(1, 4)),
    st.just(Router.give),
    st.builds(join, indexes, st.booleans()),
    st.builds(read_slowly, st.integers(0, 5)),
    st.builds(leave, st.integers(0, 5)),
    st.builds(come_back, st.integers(0, 5)),
    st.builds(die, st.integers(0, 20)),
    st.builds(amid, st.builds(join, indexes, st.booleans())),
    st.builds(amid, st.builds(come_back, st.integers(0, 5))),
)


def settle(router: Router) -> None:
    """All that is left happens: then each watcher knows everything."""
    for _ in range(4):
        router.give()
        router.node.show(router.truth.newest)
        for _ in range(2 * KEYS + 2):
            router.node.send(1)
        while router.node.sent:
            router.read()
    for client in router.clients:
        client.take(reads=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=15, max_size=80))
def test_each_watcher_of_a_feed_gets_each_change_of_its_keys_once_and_in_order(
    given_steps: list[Step],
) -> None:
    router = Router(Truth())
    join(list(range(KEYS)), is_quick=False)(router)
    settle(router)
    for step in given_steps:
        step(router)
    settle(router)
    for client in router.clients:
        assert all(client.known[index] >= 0 for index in client.indexes), "it has begun"
        assert client.position == router.heard.version == router.truth.newest
        for index in client.indexes:
            assert not router.truth.changes(index, client.known[index], router.truth.newest), "the last is never missed"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, KEYS - 1)), st.booleans()), max_size=20))
def test_quick_watchers_miss_no_version_while_nodes_take_over_from_each_other(
    versions: list[tuple[set[int], bool]],
) -> None:
    router = Router(Truth())
    client = Client(router, list(range(KEYS)), is_quick=True)
    router.clients.append(client)
    settle(router)
    for changed, dies in versions:
        router.truth.history.append(changed)
        if dies:
            router.reconnect(router.truth.newest)
        else:
            router.node.show(router.truth.newest)
            router.node.send(1000)
        while router.node.sent:
            router.read()
    settle(router)
    assert client.position == router.truth.newest
    assert not client.missed
