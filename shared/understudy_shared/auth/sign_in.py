"""The page on which a browser exchanges a key for a session, or ends the session: HTML forms without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import NamedTuple
from urllib.parse import parse_qs

from understudy_shared.auth.presented import COOKIE
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import (
    ROOT_PATH,
    App,
    Receive,
    Scope,
    Send,
    address_of,
    not_allowed,
    read_body,
    send_reply,
    to_root,
    without_body,
)
from understudy_shared.http.html_pages import CONTENT_TYPE, HEADERS, is_for_people, said_of, small_page
from understudy_shared.http.origins import why_foreign
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.http.target import application_target

LOGIN, LOGOUT = "/admin/login", "/admin/logout"
PATHS = frozenset((LOGIN.encode(), LOGOUT.encode()))
PAGE = "/admin/"
"""The page where a browser signs in, and to which it is redirected afterwards."""

MAX_FORM_BYTES = 4096

_FORM = (
    '<form method="post" action="{login}"><label for="key">Key</label>'
    '<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>'
    "<button>Sign in</button></form>"
)
_OUT = '<form method="post" action="{logout}"><button>Sign out</button></form>'
_NO_SESSIONS = (
    "<p>This router keeps no sessions, because it was started without <code>--cluster-secret-file</code>. "
    "Ask with a key instead: <code>UNDERSTUDY_API_KEY_FILE=FILE understudy lag</code>.</p>"
)


class Signing(NamedTuple):
    """The actions of one browser. `sign_in` returns the cookie for a key, or a problem; `name` is the principal of its
    session.
    """

    sign_in: Callable[[str], str | Problem]
    sign_out: Callable[[], None]
    name: str | None


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks for the page. It then gets a problem as HTML, too."""
    is_page = application_target(scope["raw_path"])[1] == PAGE.encode()  # of the service, or of one of its applications
    return bool(is_page and scope["method"] == "GET" and is_for_people(scope))


def sign_in_page(scope: Scope, said: str, *, has_sessions: bool, name: str | None = None) -> bytes:
    """Render the page for a request. `said` is the reason why it is shown, `name` the principal that is signed in."""
    here = to_root(scope)
    form = _FORM.format(login=f"{here}admin/login") if has_sessions else _NO_SESSIONS
    out = "" if name is None else f"<p>Signed in as {escape(name)}.</p>{_OUT.format(logout=f'{here}admin/logout')}"
    body = (
        f'<p role="alert">{escape(said)}</p>{form}{out}'
        "<p>This router shows itself to those whose key has the action <code>monitor</code>. An operator makes one: "
        "<code>understudy keys new NAME --role monitor</code>.</p>"
    )
    return small_page("Sign in", body)


def asking(problem: Problem, *, has_sessions: bool, name: str | None = None) -> App:
    """Return the application that answers a browser with the page in place of a problem. `name`: who is signed in."""

    async def ask(scope: Scope, _receive: Receive, send: Send) -> None:
        page = sign_in_page(scope, said_of(problem), has_sessions=has_sessions, name=name)
        await send_reply(send, problem.status, page, CONTENT_TYPE, (*HEADERS, *problem.headers))

    return ask


def signing(browser: Signing, *, has_sessions: bool) -> App:
    """Return the application that shows the forms and handles their submission."""

    async def sign(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        is_out = scope["raw_path"] == LOGOUT.encode()
        if scope["method"] in {"GET", "HEAD"} and not is_out:
            page = sign_in_page(scope, "A key opens the page.", has_sessions=has_sessions, name=browser.name)
            head = without_body(send) if scope["method"] == "HEAD" else send
            await send_reply(head, 200, page, CONTENT_TYPE, HEADERS)
            return
        is_secure = "https" in (scope.get("scheme"), headers.get("x-forwarded-proto"))
        refused = _why_not(scope["method"], headers, is_out=is_out)
        if refused is not None:
            await asking(refused, has_sessions=has_sessions, name=browser.name)(scope, receive, send)
        elif is_out:
            browser.sign_out()
            await _send_on(scope, send, is_secure, "; Max-Age=0", LOGIN)
        else:
            taken = await _taken(receive, browser.sign_in)
            if isinstance(taken, Problem):
                await asking(taken, has_sessions=has_sessions, name=browser.name)(scope, receive, send)
            else:
                await _send_on(scope, send, is_secure, taken, PAGE)

    return sign


def _why_not(method: str, headers: Mapping[str, str], *, is_out: bool) -> Problem | None:
    """Return why a form is refused: it was not sent by POST, or not from a page of this service."""
    if method != "POST":
        return not_allowed(method, "POST" if is_out else "GET, HEAD, POST")
    return why_foreign(headers)


async def _send_on(scope: Scope, send: Send, is_secure: bool, value: str, where: str) -> None:
    """Set the cookie, for the known paths of this service, and redirect the browser."""
    secure = "; Secure" if is_secure else ""
    cookie = f"{COOKIE}={value}; Path={scope.get(ROOT_PATH, '')}/; HttpOnly; SameSite=Strict{secure}".encode()
    sent = ((b"set-cookie", cookie), (b"location", address_of(scope, where).encode()), *HEADERS)
    await send_reply(send, 303, b"", CONTENT_TYPE, sent)


async def _taken(receive: Receive, sign_in: Callable[[str], str | Problem]) -> str | Problem:
    """Return the cookie for the key in a form; or the problem of the form or its key."""
    try:
        form = parse_qs((await read_body(receive, max_bytes=MAX_FORM_BYTES)).decode("latin-1"), max_num_fields=8)
    except UnderstudyError as error:
        return problem_of(error)
    except ValueError:
        form = {}
    return sign_in(form.get("key", [""])[0].strip())
