"""The page as it is served: true without scripts, under its policy, with files that a browser may keep."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from tests.support.page.fake_router import fake_app
from tests.support.page.overviews import SHOWN, Overview, degraded, history, node

import understudy_shared.page
from understudy_shared.page.render import page_pieces
from understudy_shared.page.replicas import PageQuery

STATIC = Path(understudy_shared.page.__file__).parent / "static"
HOSTILE = """<img src=x onerror=alert(1)>"'`{{7*7}}</script>"""


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router that knows the healthy overview."""
    transport = httpx.ASGITransport(app=fake_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as made:
        yield made


def rendered(overview: Overview, query: PageQuery | None = None) -> str:
    """The page of an overview."""
    return "".join(
        page_pieces(overview, {"all": history(), "store": history(), "open": history()}, query or PageQuery(), "build")
    )


class Words(HTMLParser):
    """The texts of a page, and what must not be in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.inline: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self._is_template = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._is_template += tag == "template"
        self.inline += [(tag, name) for name, _ in attrs if name == "style" or name.startswith("on")]
        self.ids += [value or "" for name, value in attrs if name == "id" and not self._is_template]

    def handle_endtag(self, tag: str) -> None:
        self._is_template -= tag == "template"

    def handle_data(self, data: str) -> None:
        if not self._is_template:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_has_no_inline_style_or_script_and_no_id_twice(name: str) -> None:
    html = rendered(SHOWN[name](), PageQuery(open="aircraft/0/node-1"))
    page = Words(html)
    assert page.inline == []
    assert "style" not in page.tags
    assert re.findall(r"<script(?![^>]* src=)", html) == []
    assert sorted(page.ids) == sorted(set(page.ids))


def test_names_out_of_the_cluster_never_become_markup() -> None:
    overview = degraded()
    overview["application_id"] = HOSTILE
    overview["nodes"] = [node(1, node_id=HOSTILE, reason=HOSTILE, state=HOSTILE)]
    overview["stores"][0]["store"] = HOSTILE
    overview["grid"]["columns"] = [HOSTILE]
    overview["grid"]["rows"][0]["store"] = HOSTILE
    overview["grid"]["rows"][0]["cells"] = {HOSTILE: overview["grid"]["rows"][0]["cells"]["node-1"]}
    overview["events"][0]["detail"] = HOSTILE
    overview["health"]["headline"] = HOSTILE
    html = rendered(overview, PageQuery(store=HOSTILE, open=f"{HOSTILE}/0/{HOSTILE}"))
    page = Words(html)
    assert "img" not in page.tags
    assert page.inline == []
    assert page.tags.count("script") == 3
    assert "{{7*7}}" in page.text, "what a name holds is shown as it is"


def test_the_state_of_the_page_comes_from_its_url() -> None:
    html = rendered(degraded(), PageQuery(store="routes", state="unwell", open="routes/0/node-2"))
    assert "routes 0 on node-2: A ?" in Words(html).text
    assert 'data-key="aircraft/0"' not in html
    assert 'data-key="routes/0"' in html
    assert "Lag of routes" in html


async def test_the_page_and_its_files_are_served_under_the_strict_policy(client: httpx.AsyncClient) -> None:
    page = await client.get("/admin/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "understudy",
    }
    assert page.headers["cache-control"] == "no-store"
    addresses = set(re.findall(r'(?:src|href)="\.\./(admin/static/[^"]+)"', page.text))
    assert len(addresses) == 5
    for address in addresses:
        file = await client.get(f"/{address}")
        assert file.status_code == 200, address
        assert file.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in file.headers["cache-control"]
        alone = page.headers["content-security-policy"].replace("trusted-types understudy", "trusted-types 'none'")
        assert file.headers["content-security-policy"] == alone


async def test_a_person_who_types_the_host_only_gets_to_the_page(client: httpx.AsyncClient) -> None:
    for path in ("/", "/admin"):
        reply = await client.get(path)
        assert (reply.status_code, reply.headers["location"]) == (307, "./admin/")


@pytest.mark.parametrize("path", ["", "nothing.js", "../files.py", "..%2ffiles.py", "vendor", "vendor/CHECKSUMS"])
async def test_nothing_but_the_pages_files_is_served(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(f"/admin/static/{path}")
    assert reply.status_code in {400, 404}
    assert reply.headers["content-type"] == "application/problem+json"


def test_no_script_makes_markup_of_a_text_but_the_one_that_takes_what_the_router_has_drawn() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
                       r"|parseFromString|\beval\(|new Function|srcdoc|setHTML")  # fmt: skip
    for path in STATIC.glob("*.js"):
        expected = ["parseFromString"] if path.name == "dom.js" else []
        assert sinks.findall(path.read_text()) == expected, path.name
