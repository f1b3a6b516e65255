"""Seeds, and documents kept on disk: whole or not at all, and never in the way."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.bus.documents import APPLICATION, assignment, heartbeat

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.message_auth import Keyring, MessageAuth
from understudy_shared.bus.messages import Assignment, Heartbeat, Message
from understudy_shared.cluster.without_bus import Memory, Remembered, parse_seeds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("n1:7101", [HostInfo("n1", 7101)]),
        (" n1:7101 ,10.0.0.1:1,", [HostInfo("n1", 7101), HostInfo("10.0.0.1", 1)]),
        ("[::1]:7101,[2001:db8::2]:2", [HostInfo("::1", 7101), HostInfo("2001:db8::2", 2)]),
        ("n1:7101,n1:7101", [HostInfo("n1", 7101)]),
    ],
)
def test_seeds_are_hosts_with_ports(text: str, found: list[HostInfo]) -> None:
    assert parse_seeds(text) == tuple(found)


@pytest.mark.parametrize(
    "text",
    ["n1", "n1:", ":7101", "n1:0", "n1:65536", "n1:x", "::1:7101", "[::1]", "http://n1:7101", "me@n1:1", "n1:1 n2:1"],
)
def test_what_is_no_seed_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a seed") as caught:
        parse_seeds(f"n9:7101,{text}")
    assert (caught.value.where, repr(text) in caught.value.what) == ("seed", True)
    assert "host:port" in caught.value.fix


@pytest.fixture
def kept(tmp_path: Path) -> Remembered:
    return Remembered(tmp_path / "new" / "folder", APPLICATION)


def file_of(kept: Remembered) -> Path:
    (file,) = kept.folder.iterdir()
    return file


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_last_document_of_each_kind_is_remembered(kept: Remembered) -> None:
    for epoch in (1, 2):
        assert kept.save(assignment(term=1, epoch=epoch))
    assert kept.save(heartbeat())
    again = Remembered(kept.folder, APPLICATION)
    assert again.load(Assignment) == assignment(term=1, epoch=2)
    assert again.load(Heartbeat) == heartbeat()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.data())
def test_any_damage_is_noticed(kept: Remembered, data: st.DataObject) -> None:
    assert kept.save(assignment(term=1, epoch=2))
    file = file_of(kept)
    whole = file.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:place],
                whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :],
                whole[:place] + b"\0" + whole[place:],
                whole + b" ",
            ]
        )
    )
    file.write_bytes(damaged)
    assert kept.load(Assignment) is None


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_half_way_leaves_the_document_before_it_and_nothing_else(
    step: str, kept: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.save(assignment(term=1, epoch=1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    assert not kept.save(assignment(term=1, epoch=2))
    monkeypatch.undo()
    assert kept.load(Assignment) == assignment(term=1, epoch=1)
    assert file_of(kept)


def test_what_a_killed_writer_left_is_removed_by_the_next_but_one(kept: Remembered) -> None:
    assert kept.save(assignment(term=1, epoch=1))
    file = file_of(kept)
    draft = file.with_name(f".{file.name}.abc.draft")
    draft.write_bytes(b"half")
    assert kept.save(assignment(term=1, epoch=2))
    os.utime(draft, ns=(0, 0))  # a moment later
    assert kept.save(assignment(term=1, epoch=3))
    assert file_of(kept) == file


def test_two_writers_of_one_folder_leave_one_whole_document(kept: Remembered) -> None:
    def write(term: int) -> None:
        mine = Remembered(kept.folder, APPLICATION)
        for epoch in range(1, 40):
            mine.save(assignment(term=term, epoch=epoch))

    writers = [threading.Thread(target=write, args=(term,)) for term in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = kept.load(Assignment)
    assert found is not None
    assert found.epoch == 39


class Slow(Remembered):
    """Documents whose writes wait until the test lets them go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, APPLICATION)
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.saved: list[Message] = []

    def save(self, document: Message) -> bool:
        self.began.set()
        self.may_end.wait(20)
        self.saved.append(document)
        return super().save(document)


async def test_of_many_documents_that_come_while_one_is_written_the_last_is_kept(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    memory = Memory(slow)
    keeping = asyncio.ensure_future(memory.keep())
    memory.note(assignment(term=1, epoch=1))
    await asyncio.to_thread(slow.began.wait, 20)
    for epoch in range(2, 1000):
        memory.note(assignment(term=1, epoch=epoch))
    keeping.cancel()
    await asyncio.wait({keeping})
    ending = asyncio.ensure_future(memory.flush())
    slow.may_end.set()
    await ending
    assert slow.saved == [assignment(term=1, epoch=1), assignment(term=1, epoch=999)]
    assert await memory.load(Assignment) == assignment(term=1, epoch=999)


def test_with_a_key_only_what_a_process_with_a_key_remembered_is_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def kept_by(*keys: bytes, accepts_unsigned: bool = False) -> Remembered:
        keyring = Keyring(keys) if keys else None
        auth = MessageAuth(APPLICATION, keyring, sender="n1", accepts_unsigned=accepts_unsigned)
        return Remembered(tmp_path, APPLICATION, auth)

    old, new = b"o" * 32, b"n" * 32
    assert kept_by().save(assignment(term=1, epoch=1))
    assert kept_by(new).load(Assignment) is None
    assert "is an unsigned 'assignment'" in warnings(caplog)[-1]
    assert kept_by(new, accepts_unsigned=True).load(Assignment) == assignment(term=1, epoch=1)
    assert kept_by(old).save(assignment(term=1, epoch=2))
    assert kept_by().load(Assignment) == assignment(term=1, epoch=2), "a process without a key reads it"
    assert kept_by(new, old).load(Assignment) == assignment(term=1, epoch=2)
    assert kept_by(new).load(Assignment) is None
    file = tmp_path / "assignment.remembered"
    (tmp_path / "heartbeat.remembered").write_bytes(file.read_bytes())
    assert kept_by(old).load(Heartbeat) is None, "it was signed as an assignment"
