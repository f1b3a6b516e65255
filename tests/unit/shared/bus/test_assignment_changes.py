"""A process that hears what changed follows what one follows that hears whole assignments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.bus.assignments import AssignmentChange, apply_change, change_between
from understudy_shared.bus.messages import AssignedTask, Assignment, Endpoint

TASKS = [f"0_{number}" for number in range(6)]
NODES = "abcd"
ASSIGNED = st.builds(
    lambda nodes, warmups: AssignedTask(
        active=nodes[0] if nodes else None, standbys=tuple(nodes[1:]), warmups=tuple(sorted(warmups - set(nodes)))
    ),
    st.lists(st.sampled_from(NODES), unique=True, max_size=3),
    st.sets(st.sampled_from(NODES), max_size=1),
)
STEPS = st.fixed_dictionaries(
    {
        "tasks": st.dictionaries(st.sampled_from(TASKS), ASSIGNED, max_size=4),
        "members": st.dictionaries(
            st.sampled_from(NODES), st.builds(Endpoint, host=st.sampled_from("xy"), port=st.just(1))
        ),
        "draining": st.lists(st.sampled_from(NODES), max_size=2),
        "term": st.integers(0, 1),
        "partitions": st.sampled_from([6, 6, 6, 7]),
    }
)
WRITE = 0
"""An event: the next assignment is written. Any other number is a message that arrives, perhaps again or too late."""


def follows(known: Assignment | None, message: Assignment | AssignmentChange, stored: Assignment) -> Assignment | None:
    """What a process follows after a message; `stored` is what it reads when it cannot use the message."""
    found = (apply_change(message, known) or stored) if isinstance(message, AssignmentChange) else message
    return known if known is not None and found.order <= known.order else found


@given(steps=st.lists(STEPS, min_size=1, max_size=8), events=st.lists(st.integers(0, 20)), starts_again=st.booleans())
def test_after_any_loss_and_in_any_order_what_is_followed_is_an_assignment_that_was_written(
    steps: list[dict[str, object]], events: list[int], starts_again: bool
) -> None:
    whole = Assignment(
        application_id="flights", term=1, epoch=1, written_by="a", lineage="l1", partitions=6,
        tasks={task: AssignedTask(active="a") for task in TASKS},
    )  # fmt: skip
    written, said = [whole], list[Assignment | AssignmentChange]([whole])
    known: Assignment | None = whole

    def write() -> None:
        before, step = written[-1], dict(steps[len(written) - 1])
        tasks = before.tasks | step.pop("tasks")  # type: ignore[operator]
        term = before.term + int(str(step.pop("term")))
        after = before.model_copy(update={**step, "term": term, "epoch": before.epoch + 1, "tasks": tasks})
        change = change_between(before, after)
        written.append(after)
        said.append(after if change is None else decoded(change))

    def hear(number: int) -> None:
        nonlocal known
        known = follows(known, said[number % len(said)], written[-1])
        assert known is not None
        expected = next(each for each in written if each.order == known.order)
        assert known == expected
        assert known.holders == expected.holders
        assert list(known.tasks) == list(expected.tasks)

    for event in events:
        if event == WRITE and len(written) <= len(steps):
            write()
        else:
            hear(event)
    if starts_again:
        known = None
    hear(len(said) - 1)
    assert known == written[-1]


def decoded(change: AssignmentChange) -> AssignmentChange:
    """The change as another process reads it."""
    return AssignmentChange.decode(change.encode(), application_id="flights", where="here")


def test_a_change_names_what_a_death_touches_and_nothing_else() -> None:
    tasks = {task: AssignedTask(active="a" if task < "0_3" else "b", standbys=("c",)) for task in TASKS}
    members = {each: Endpoint(host=each, port=1) for each in "abc"}
    before = Assignment(
        application_id="flights", term=1, epoch=1, written_by="a", lineage="l1", partitions=6, tasks=tasks,
        members=members,
    )  # fmt: skip
    moved = {task: AssignedTask(active="c") for task in TASKS[3:]}
    del members["b"]
    after = before.model_copy(update={"epoch": 2, "tasks": tasks | moved, "members": members})
    change = change_between(before, after)
    assert change is not None
    assert (change.tasks, change.gone, change.unnamed, change.members) == (moved, ["b"], ["b"], {})
    assert change_between(before, after.model_copy(update={"lineage": "l2"})) is None


def test_a_change_of_tasks_that_are_not_known_is_not_applied() -> None:
    known = Assignment(
        application_id="flights", term=1, epoch=1, written_by="a", lineage="l1", partitions=6,
        tasks={"0_0": AssignedTask(active="a")},
    )  # fmt: skip
    change = AssignmentChange(
        application_id="flights", term=1, epoch=2, base_term=1, base_epoch=1, written_by="a", lineage="l1",
        tasks={"0_1": AssignedTask(active="a")},
    )  # fmt: skip
    assert apply_change(change, known) is None
    assert apply_change(change.model_copy(update={"tasks": {}, "base_epoch": 2}), known) is None
    assert apply_change(change.model_copy(update={"tasks": {}}), known) is not None
