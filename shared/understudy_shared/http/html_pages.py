"""Small HTML pages without scripts, for people with a browser: the sign-in page, problems of forms (pure)."""

from __future__ import annotations

import base64
import hashlib
from html import escape

from understudy_shared.http.edge import Scope, Send, send_reply, to_root
from understudy_shared.http.problems import Problem, ProblemType

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;"
    "border-bottom:1px solid #8886;overflow-wrap:anywhere}"
    "td:first-child,th{overflow-wrap:break-word}"
    "input{font:inherit;width:100%;box-sizing:border-box;padding:.4rem}button{font:inherit;margin-top:1rem}"
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = (
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'".encode(),
    ),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers post forms with `Origin: null`
    (b"cache-control", b"no-store"),
)
CONTENT_TYPE = b"text/html; charset=utf-8"

_HOW = {
    ProblemType.UNAUTHENTICATED: "",
    ProblemType.CROSS_SITE: "Open the page itself, and use its own form",
    ProblemType.TOO_LARGE: "A key is one line that begins with usk_: paste that line alone",
    ProblemType.METHOD_NOT_ALLOWED: "Use the form of the page",
}
"""Advice for people about problems whose `fix` is for programs."""


def is_for_people(scope: Scope) -> bool:
    """Whether a person will see the answer: a browser asks for HTML, from the pages and forms below `/admin/`."""
    path: bytes = scope["raw_path"]
    if not path.startswith(b"/admin/") or path.startswith(b"/admin/v1/"):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def small_page(title: str, body: str) -> bytes:
    """Render a page. `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>Understudy: {escape(title.lower())}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{body}</main></body></html>\n"
    ).encode()


def said_of(problem: Problem) -> str:
    """Write a problem as sentences: the fault, and what to do."""
    how = _HOW.get(problem.type, problem.fix)
    return "".join(f"{part[0].upper()}{part[1:]}. " for part in (problem.detail, how) if part).rstrip()


def problem_page(scope: Scope, problem: Problem) -> bytes:
    back = f'<p><a href="{to_root(scope)}admin/">Back to the page</a></p>'
    said = f'<p role="alert">{escape(said_of(problem))}</p>{back}'
    return small_page(problem.type.title, said)


async def send_problem_page(scope: Scope, send: Send, problem: Problem) -> None:
    page = problem_page(scope, problem)
    await send_reply(send, problem.status, page, CONTENT_TYPE, (*HEADERS, *problem.headers))
