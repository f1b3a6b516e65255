"""Long reads have a limit of their own, and give their place back however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.questions.scan import long_reads
from understudy_shared.questions.scan.long_reads import LongReads
from understudy_shared.reads.export_format import ExportFormat


def test_one_more_than_the_limit_is_refused_and_a_place_that_ended_is_free_again() -> None:
    reads = LongReads(2)
    with reads.begun(), reads.begun():
        with pytest.raises(ProblemError, match="as many as max_scans_in_flight") as refused, reads.begun():
            pass
        assert refused.value.problem.type is ProblemType.OVERLOADED
        assert (b"retry-after", b"1") in refused.value.problem.headers
        assert reads.in_flight == 2
    with pytest.raises(ValueError, match="a bug"), reads.begun():
        raise ValueError("a bug")
    assert reads.in_flight == 0


async def test_exports_have_a_limit_of_their_own_and_as_many_parts_are_made_at_once() -> None:
    reads = LongReads(1, max_exports=1)
    with reads.begun(), reads.begun_export(ExportFormat.CSV):
        with (
            pytest.raises(ProblemError, match="as many as max_exports_in_flight"),
            reads.begun_export(ExportFormat.ARROW),
        ):
            pass
        assert (reads.in_flight, reads.exports_in_flight) == (1, 1)
    assert (reads.in_flight, reads.exports_in_flight) == (0, 0)
    assert reads.exports_begun == {ExportFormat.CSV: 1}
    made: list[int] = []

    async def make(number: int) -> None:
        async with reads.part_turn():
            made.append(number)
            await asyncio.sleep(0)
            assert made[-1] == number, "another one began meanwhile"

    await asyncio.gather(*(make(number) for number in range(long_reads.MAX_WAITING_PARTS)))
    assert made == list(range(long_reads.MAX_WAITING_PARTS)), "first come, first served"
    async with reads.part_turn():
        waiting = [asyncio.ensure_future(make(number)) for number in range(long_reads.MAX_WAITING_PARTS)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="wait for their turn"):
            async with reads.part_turn():
                pass
        for task in waiting[1:]:
            task.cancel()
    await waiting[0]
    async with reads.part_turn():
        assert made[-1] == 0


async def test_between_two_turns_of_the_loop_one_slice_is_done_of_all_reads_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_reads, "SLICE_S", 0.0)
    reads, turn = LongReads(9), 0
    steps: list[tuple[str, int]] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def read(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            steps.append((name, turn))
            yield
        return name

    counting = asyncio.get_running_loop().create_task(count_turns())
    assert await asyncio.gather(*(reads.in_turns(read(name)) for name in "abc")) == ["a", "b", "c"]
    counting.cancel()
    turns = [at for _, at in steps]
    assert len(turns) == len(set(turns)) == 9, "a slice of its own for each turn"
    assert [name for name, _ in steps[:3]] == ["a", "b", "c"], "one read after the other"
