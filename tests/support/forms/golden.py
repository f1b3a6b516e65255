"""Values that are sent, kept or handed out, and their bytes: what a recorded release wrote is read as it was meant."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.support.bus.documents import APPLICATION, assignment, heartbeat

from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.bus.message_auth import Keyring, SignedContent, Stamp, parse_line
from understudy_shared.bus.messages import AnnouncedStore, Announcement, Catalogue, CatalogueStore, CommitHint, Message
from understudy_shared.questions.changes.histories import HistoryHop, HistoryRange, decode_history_hop
from understudy_shared.questions.changes.service import ChangesHop, decode_changes_hop
from understudy_shared.questions.export.hop import ExportHop, ResumePoint, decode_export_hop
from understudy_shared.questions.lease.calls import LeasesCall, ShownCall, decode_leases_call, decode_shown_call
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    FOUND,
    PROBLEM,
    HopGroup,
    HopKey,
    HopOutcome,
    HopReply,
    HopRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from understudy_shared.questions.scan.hop import ScanHop, decode_scan_hop
from understudy_shared.questions.scan.question import ScanCursor, ScanQuestion, decode_scan_cursor
from understudy_shared.questions.watch.hop import FedPartition, FeedHop, decode_feed_hop
from understudy_shared.reads.bounds import Bound, Selection, version_of
from understudy_shared.reads.export_format import ExportFormat
from understudy_shared.reads.tokens import (
    PageCursor,
    Position,
    SnapshotLease,
    decode_cursor,
    decode_lease,
    decode_position,
)

LINEAGE, COMMITTED_US, SECRET = "6f1c7f0e", 1_795_000_000_123_456, b"k" * 32
TAIL = b',"version":418}'
POSITION = Position(ApplicationId(APPLICATION), Lineage(LINEAGE), 418, COMMITTED_US)
CURSOR = PageCursor("visits", LINEAGE, "00", 418, COMMITTED_US, 7)
LEASE = SnapshotLease(POSITION, "l" * 16, 60)
SIGNED, STAMP = SignedContent(APPLICATION, b"heartbeat", b"{}"), Stamp("n1", "0" * 32, 7)
SCAN = ScanHop(
    APPLICATION, LINEAGE, "aircraft", "unsafe-row", 4, ScanQuestion(low="a", high="b"), 2,
    version_of(418, COMMITTED_US), b"\x00\x01", 100, 65_536, False, True, 250, False, 1000,
)  # fmt: skip
STORE = CatalogueStore(
    store="aircraft", operator_id=0, operator="stateStoreSave", key_schema="{}", key_names=["tailnum"], partitions=4,
    value=[{"name": "n", "type": "long"}],
)  # fmt: skip


_BASE64 = "base64 "


class Golden(NamedTuple):
    """A value, which never changes, and how it is written and read."""

    value: Any
    encode: Callable[[Any], bytes | str]
    decode: Callable[[Any], Any]


def _message(value: Message) -> Golden:
    kind = type(value)
    return Golden(value, kind.encode, lambda body: kind.decode(body, application_id=APPLICATION, where="here"))


def _hop(value: Any, decode: Callable[[Any], Any]) -> Golden:
    return Golden(value, lambda each: each.encode(), decode)


def _offset_of(text: bytes) -> SourceOffset:
    return SourceOffset.from_json(json.loads(text))


def _offset_text(offset: SourceOffset) -> bytes:
    return json.dumps(offset.to_json()).encode()


def _reply(value: HopReply) -> HopReply:
    return value._replace(outcomes=[HopOutcome(*each) for each in value.outcomes])


def _request(value: HopRequest) -> HopRequest:
    groups = [group._replace(keys=[HopKey(*key) for key in group.keys]) for group in value.groups]
    return value._replace(groups=groups, traces=tuple(value.traces))


GOLDEN: Mapping[str, Golden] = {
    "position": _hop(POSITION, decode_position),
    "page cursor": _hop(CURSOR, decode_cursor),
    "scan cursor": _hop(
        ScanCursor(APPLICATION, LINEAGE, "aircraft", 418, COMMITTED_US, 2, b"\x00", "q"), decode_scan_cursor
    ),
    "snapshot lease": _hop(LEASE, decode_lease),
    "lookup hop": Golden(
        HopRequest(
            APPLICATION, 418, 3, 7, 250,
            [HopGroup("aircraft", LINEAGE, 4, Bound(max_lag=2, min_position=POSITION, selection=Selection(5, CURSOR)),
                      [HopKey(1, b"\x00row")], "unsafe-row")],
        ),
        encode_request, lambda body: _request(decode_request(body)),
    ),
    "lookup reply": Golden(
        HopReply(3, 7, 418, [HopOutcome(FOUND, b'"value":1', TAIL), HopOutcome(ABSENT, b"", TAIL),
                             HopOutcome(PROBLEM, b'{"status":503}')]),
        encode_reply, lambda body: _reply(decode_reply(body)),
    ),
    "scan hop": _hop(SCAN, decode_scan_hop),
    "export hop": _hop(ExportHop(SCAN, ExportFormat.NDJSON, ResumePoint("d", 1)), decode_export_hop),
    "changes hop": _hop(ChangesHop(SCAN, 420, 0, True), decode_changes_hop),
    "history hop": _hop(
        HistoryHop(APPLICATION, LINEAGE, "aircraft", "unsafe-row", 4, 2, b"\x00", HistoryRange(400, 418)),
        decode_history_hop,
    ),
    "watch hop": _hop(
        FeedHop(FedPartition(APPLICATION, LINEAGE, "aircraft", "unsafe-row", 4, 1, Selection(5)), "f", POSITION, 1),
        decode_feed_hop,
    ),
    "shown call": _hop(ShownCall(APPLICATION, LINEAGE, ("aircraft",), POSITION), decode_shown_call),
    "leases call": _hop(LeasesCall(APPLICATION, LINEAGE, (LEASE,), ("aircraft",)), decode_leases_call),
    "heartbeat": _message(heartbeat()),
    "assignment": _message(assignment(term=1, epoch=2)),
    "catalogue": _message(Catalogue(application_id=APPLICATION, lineage=LINEAGE, partitions=4, stores=[STORE])),
    "commit hint": _message(CommitHint(application_id=APPLICATION, version=418)),
    "announcement": _message(
        Announcement(application_id=APPLICATION, query_id="q", stores=[AnnouncedStore(operator_id=0, name="aircraft")])
    ),
    "signature": Golden(
        SIGNED,
        lambda content: Keyring([SECRET]).sign(STAMP, content),
        lambda line: SIGNED if Keyring([SECRET]).is_valid(parse_line(line), SIGNED) else None,
    ),
    "offset of the aligned source": Golden(
        SourceOffset({"topics": ["a"]}, {TopicPartition("a", 0): Cursor("7", 8, 1_000)}, {"a": "id"}, 1_000, 1, 2, 3),
        _offset_text, _offset_of,
    ),
}  # fmt: skip


def written(each: Golden) -> str:
    """Return what is written of a value as one line of text; bytes that are not ASCII in base64."""
    found = each.encode(each.value)
    if isinstance(found, str):
        return found
    is_line = found.isascii() and found.decode().isprintable()
    return found.decode() if is_line else _BASE64 + base64.b64encode(found).decode()


def read_again(each: Golden, text: str) -> Any:
    """Read what `written` returned, now or in an earlier release."""
    if isinstance(each.encode(each.value), str):
        return each.decode(text)
    return each.decode(base64.b64decode(text.removeprefix(_BASE64)) if text.startswith(_BASE64) else text.encode())
