"""Entity tags: whether a reader has an answer already (pure, RFC 9110)."""

from __future__ import annotations


def is_known(if_none_match: str, tag: str) -> bool:
    """Whether a request's `If-None-Match` names the tag of the answer.

    Tags are compared weakly: a compressed answer has the tag of the plain one.
    """
    known = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return "*" in known or tag.removeprefix("W/") in known
