"""The page of problems: what each type means, and what to do. Types and statuses are those of the code."""

from __future__ import annotations

from collections.abc import Mapping

from tools.reference.markdown import GENERATED, code, page, table

from understudy_shared.http.problems import ProblemType

_MEANINGS: Mapping[str, tuple[str, str]] = {
    "bad-key": ("the key does not fit the store's key columns; `where` names the column", "mend the reader"),
    "bad-bound": (
        "a bound or a cursor is unknown, mistyped, out of range or of another question; `where` names it",
        "mend the reader",
    ),
    "bad-request": (
        "the request does not parse, or a cursor of `/admin/v1/lag` is damaged, too old or of another list",
        "mend the reader",
    ),
    "unauthenticated": (
        "the service asks for credentials, and the request has none, an unknown one, or one that expired",
        "send a key or a token; `understudy keys list` shows what expired ([security](../security.md))",
    ),
    "cross-site": (
        "a page of another site tried to change something here through a reader's browser",
        "find the page; nothing was changed",
    ),
    "forbidden": (
        "the credential's roles do not allow this call, or do not cover this key",
        "another key, or another role in the file of credentials",
    ),
    "unknown-store": (
        "no node serves a store of that name",
        "`understudy stores`; after a restart of the query: was an alias or an operator renamed?",
    ),
    "unknown-application": (
        "the path names an application that is not served here, or that the credential does not show",
        "`understudy applications list`; [many queries in one process](../how-to/fleet.md)",
    ),
    "unknown-path": ("no such call, node or partition", "[the calls](http.md)"),
    "method-not-allowed": ("this path does not take this method; `Allow` says what it takes", "[the calls](http.md)"),
    "request-timeout": (
        "headers or body did not come in time: `header_timeout_ms`, `body_timeout_ms`",
        "mend the reader; else a client holds connections open on purpose",
    ),
    "ambiguous-key": (
        "two partitions of a scattered store have the key: the query placed its keys in another way before",
        "a scan with the key as prefix shows both; [which counts](../troubleshooting.md#answers-that-surprise)",
    ),
    "ambiguous-store": (
        "several applications have a store of this name, and the path names no application",
        "`/v1/applications/{application}/stores/{store}/...`, or `--application`",
    ),
    "listed-application": (
        "an application was to be let go that the file of applications names, or the command",
        "`understudy applications remove` with `--file`",
    ),
    "lineage-changed": (
        "the reader's position is of a history that is gone: the checkpoint was made anew, or rewound",
        "the reader drops its position; if you did neither, find out what did",
    ),
    "version-gone": (
        (
            "the checkpoint no longer has the version that the reader or its cursor names; `retained_versions` has the "
            "first and the last one that it has, `layout_since` the first one after an offline repartition or a change "
            "of the state store provider"
        ),
        "a newer version, or begin again; `spark.sql.streaming.minBatchesToRetain` keeps more",
    ),
    "too-large": ("above one of the [limits](limits.md)", "split the batch; POST long keys; raise `max_key_bytes`"),
    "target-too-long": (
        "path and query above 32 KiB; the connection is closed",
        "send keys in the body of a batch",
    ),
    "not-json": (
        "what changes something came without `Content-Type: application/json`; without it any page could send it",
        "`understudy drain`, or curl with `-H 'content-type: application/json'`",
    ),
    "not-owner": ("a node was asked directly for what it does not hold", "ask a router"),
    "outdated-catalogue": (
        (
            "a node answers a router that its keys are encoded or placed by another catalogue; a reader sees it only "
            "as a reason against a candidate"
        ),
        "nothing: the router reads the catalogue again",
    ),
    "overloaded": (
        (
            "more at once than a [limit](limits.md) allows, too many connections, memory is short, or the nodes are "
            "overloaded and the retry budget is spent"
        ),
        "more routers or nodes; look for one reader that does it all",
    ),
    "rate-limited": (
        "a principal asks more often than `[limits]` in the file of credentials lets it",
        "batches; or a higher number: [security](../security.md#how-often)",
    ),
    "headers-too-large": (
        "headers above 16 KiB; the connection is closed",
        "does a proxy add headers?",
    ),
    "internal": ("a bug of ours", "report it with the log"),
    "store-error": (
        "the state could not be read; `detail` names the file",
        "the node's disk, the checkpoint's storage; the node restores again by itself",
    ),
    "node-unreachable": (
        "a drain could not be handed to its node",
        "is the node alive (`understudy lag`)? A dead one needs no drain",
    ),
    "bad-reply": (
        "what a node answered to a drain is too large, no JSON, or a redirect: it was not passed on",
        "does something else listen at the node's address?",
    ),
    "not-initialised": (
        (
            "nothing is known yet of the query, its stores, or the nodes that have them, or an older version is still "
            "being opened"
        ),
        "retry; if it stays: is a node alive (`understudy lag`), does Redis answer, did the query commit?",
    ),
    "no-acceptable-replica": (
        "no replica may answer within the reader's bound; `candidates` has each one with the reason",
        "[what each reason means](../operations.md#why-a-replica-was-not-asked)",
    ),
    "too-many-viewers": ("500 viewers watch the events of this router", "close pages; ask another router"),
    "deadline": ("it took longer than `deadline_ms`", "`understudy explain`: which node is slow?"),
}
"""The meaning of each type to a reader or an operator, and what to do about it."""


def problems_page() -> str:
    """Render a row for each type of problem."""
    return page(
        "# Problems",
        GENERATED.format(source="the types of problems"),
        "A failure is `application/problem+json` (RFC 9457): `type` is stable, `detail` says what was wrong, `where` "
        "where, `fix` what to do, and `candidates` which replicas might not answer, and why. Only a `404` of "
        "`application/json` with `found: false` means that a key is absent. `429` and `503` have `Retry-After`. The "
        "Python client raises an [error of its own](../client.md#errors) for each kind.",
        table(
            ("type", "status", "means", "do"),
            ((code(each.slug), str(each.status), *_MEANINGS[each.slug]) for each in ProblemType),
        ),
    )
