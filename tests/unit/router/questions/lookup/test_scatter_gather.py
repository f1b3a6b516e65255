"""The keys of a scattered store are asked of all partitions, and each gets one result."""

from __future__ import annotations

from understudy_router.forwarding.fallback import Results
from understudy_router.questions.lookup.forward import gathered, spread
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.lookup.batches import NOT_FOUND
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, NO_PARTITION, OPEN, HopKeys, HopOutcome
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.key_codec import ANY_PARTITION

BAD = Problem(ProblemType.BAD_KEY, "a key that does not parse")
KEYS = HopKeys([ANY_PARTITION, NO_PARTITION, ANY_PARTITION], [b"a", b"", b"c"])


def test_each_key_is_asked_of_each_partition_and_one_with_a_problem_of_none() -> None:
    keys, problems = spread(KEYS, {1: BAD}, 2)
    assert list(keys) == [(0, b"a"), (NO_PARTITION, b""), (0, b"c"), (1, b"a"), (NO_PARTITION, b""), (1, b"c")]
    assert problems == {1: BAD, 4: BAD}


def test_what_partitions_say_of_a_key_is_one_result_in_the_order_of_the_keys() -> None:
    keys, problems = spread(KEYS, {1: BAD}, 2)
    results = Results(len(keys), problems)
    for at, (partition, row) in enumerate(keys):
        if partition != NO_PARTITION:
            is_found = (partition, row) == (1, b"c")
            members = b'"found":true,' if is_found else NOT_FOUND
            tail = b'"partition":%d,"version":3,' % partition
            results.keep(at, HopOutcome(FOUND if is_found else ABSENT, members, tail))
    found, unsettled = gathered("op0", results, 2, {1: BAD})
    assert not unsettled
    assert found[0] == HopOutcome(ABSENT, NOT_FOUND, b'"partition":null,"version":3,')
    assert found[1] is BAD
    assert found[2] == HopOutcome(FOUND, b'"found":true,', b'"partition":1,"version":3,')


def test_a_key_that_partitions_lack_at_different_versions_stays_open_and_is_asked_at_the_oldest() -> None:
    results = Results(4, {})
    for at, version in enumerate((3, 3, 4, 3)):
        position = Position(ApplicationId("app"), Lineage("l1"), version, None).encode().encode()
        tail = b'"partition":%d,"version":%d,"position":"%b"}' % (at // 2, version, position)
        results.keep(at, HopOutcome(ABSENT, NOT_FOUND, tail))
    found, unsettled = gathered("op0", results, 2, {})
    assert unsettled == {Position(ApplicationId("app"), Lineage("l1"), 3, None): [0]}
    assert (found.kinds[0], found.kinds[1]) == (OPEN, ABSENT)
