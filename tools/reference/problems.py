"""The page of problems: what each type means, and what to do. Types and statuses are those of the code."""

from __future__ import annotations

from collections.abc import Mapping

from tools.reference.markdown import GENERATED, code, entries, page

from understudy_shared.http.problems import ProblemType

_MEANINGS: Mapping[str, str] = {
    "bad-key": "The key does not fit the store's key columns; `where` names the column.",
    "bad-bound": "A bound or a cursor is unknown, mistyped, out of range or of another question; `where` names it.",
    "bad-request": (
        "The request does not parse, or a cursor of `/admin/v1/lag` is damaged, too old or of another list."
    ),
    "unauthenticated": (
        "The service asks for credentials, and the request has none, an unknown one, or one that expired: "
        "`understudy keys list` shows which did ([security](../security.md))."
    ),
    "cross-site": (
        "A page of another site tried to change something here through a reader's browser. Nothing was changed; "
        "find the page."
    ),
    "forbidden": (
        "The credential's roles do not allow this call, or do not cover this key. Use another key, or change the role "
        "in the file of credentials."
    ),
    "unknown-store": (
        "No node serves a store of that name: see `understudy stores`. After a restart of the query: was an alias or "
        "an operator renamed?"
    ),
    "unknown-application": (
        "The application in the path is not served here, or the credential does not show it: see `understudy "
        "applications list` and [many queries in one process](../how-to/fleet.md)."
    ),
    "unknown-path": "No such [call](http.md), node or partition.",
    "method-not-allowed": "This path does not take this method; `Allow` says what it takes.",
    "request-timeout": (
        "Headers or body did not come in time: `header_timeout_ms`, `body_timeout_ms`. Mend the reader, or find the "
        "client that holds connections open on purpose."
    ),
    "ambiguous-key": (
        "Two partitions of a scattered store have the key: the query placed its keys in another way before. A scan "
        "with the key as prefix shows both; [which counts](../troubleshooting.md#answers-that-surprise)."
    ),
    "ambiguous-store": (
        "Several applications have a store of this name. Name one: "
        "`/v1/applications/{application}/stores/{store}/...`, or `--application`."
    ),
    "listed-application": (
        "The file of applications, or the command, names the application that was to be let go. Use `understudy "
        "applications remove` with `--file`."
    ),
    "lineage-changed": (
        "The reader's position is of a history that is gone: the checkpoint was made anew, or rewound. The reader "
        "drops its position; if you did neither, find out what did."
    ),
    "version-gone": (
        "The checkpoint no longer has the version that the reader or its cursor names; `retained_versions` has the "
        "first and the last one that it has, `layout_since` the first one after an offline repartition or a change of "
        "the state store provider. Take a newer version, or begin again; "
        "`spark.sql.streaming.minBatchesToRetain` keeps more."
    ),
    "too-large": "Above one of the [limits](limits.md). Split the batch; POST long keys; raise `max_key_bytes`.",
    "target-too-long": ("Path and query above 32 KiB; the connection is closed. Send keys in the body of a batch."),
    "not-json": (
        "A change came without `Content-Type: application/json`; without it any page could send it. Use `understudy "
        "drain`, or curl with `-H 'content-type: application/json'`."
    ),
    "not-owner": "A node was asked directly for what it does not hold. Ask a router.",
    "outdated-catalogue": (
        "A node answers a router that its keys are encoded or placed by another catalogue, which the router then "
        "reads again. A reader sees it only as a reason against a candidate."
    ),
    "overloaded": (
        "More at once than a [limit](limits.md) allows, too many connections, memory is short, or the nodes are "
        "overloaded and the retry budget is spent. Add routers or nodes; look for one reader that does it all."
    ),
    "rate-limited": (
        "A principal asks more often than `[limits]` in the file of credentials lets it. Send batches, or [raise "
        "it](../security.md#how-often)."
    ),
    "headers-too-large": "Headers above 16 KiB; the connection is closed. Does a proxy add headers?",
    "internal": "A bug of ours. Report it with the log.",
    "store-error": (
        "The state could not be read; `detail` names the file. Look at the node's disk, the checkpoint's storage; the "
        "node restores again by itself."
    ),
    "node-unreachable": (
        "A drain could not be handed to its node. Is the node alive (`understudy lag`)? A dead one needs no drain."
    ),
    "bad-reply": (
        "What a node answered to a drain is too large, no JSON, or a redirect: it was not passed on. Does something "
        "else listen at the node's address?"
    ),
    "not-initialised": (
        "Nothing is known yet of the query, its stores, or the nodes that have them, or an older version is still "
        "being opened. Retry; if it stays: is a node alive (`understudy lag`), does Redis answer, did the query commit?"
    ),
    "no-acceptable-replica": (
        "No replica may answer within the reader's bound; `candidates` has each one with [the "
        "reason](../operations.md#why-a-replica-was-not-asked)."
    ),
    "too-many-viewers": "500 viewers watch the events of this router. Close pages; ask another router.",
    "deadline": "It took longer than `deadline_ms`. `understudy explain` shows which node is slow.",
}
"""The meaning of each type to a reader or an operator, and what to do about it."""


def problems_page() -> str:
    """Render an entry for each type of problem."""
    return page(
        "# Problems",
        GENERATED.format(source="the types of problems"),
        "A failure is `application/problem+json` (RFC 9457): `type` is stable, `detail` says what was wrong, `where` "
        "where, `fix` what to do, and `candidates` which replicas might not answer, and why. Only a `404` of "
        "`application/json` with `found: false` means that a key is absent. `429` and `503` have `Retry-After`. The "
        "Python client raises an [error of its own](../client.md#errors) for each kind. Of a 400 mend the reader.",
        entries((f"{code(each.slug)} ({each.status})", _MEANINGS[each.slug]) for each in ProblemType),
    )
