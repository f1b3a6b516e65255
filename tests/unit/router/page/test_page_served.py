"""The page as it is served: true without scripts, under its policy, with files that a browser may keep."""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest
from tests.support.page.fake_router import fake_app
from tests.support.page.overviews import SHOWN, Overview, degraded, healthy, history, large, lease, node

import understudy_router.page
from understudy_router.page.assets import page_assets
from understudy_router.page.page_query import PageQuery
from understudy_router.page.render import joined, page_pieces
from understudy_shared.base import slices

STATIC = Path(understudy_router.page.__file__).parent / "static"
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
def test_every_state_is_shown_in_its_own_words_without_scripts(name: str) -> None:
    overview = SHOWN[name]()
    html = rendered(overview)
    page = Words(html)
    assert overview["health"]["headline"] in page.text
    assert ("Runbook: " in page.text) == (overview["health"]["runbook"] is not None)
    for each in overview["health"]["indicators"]:
        for part in ("symptom", "impact", "cause", "action"):
            assert each[part] in page.text
        if each["runbook"] is not None and each["state"] != "ok":
            assert f'href="/admin/runbooks/{Path(each["runbook"]).stem}"' in html
    for each in overview["events"]:
        assert each["detail"] in page.text
    for each in overview["nodes"]:
        assert each["safe_to_stop"]["why"] in page.text


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
    for address in set(re.findall(r'(?:src|href)="(/admin/static/[^"]+)"', page.text)):
        file = await client.get(address)
        assert file.status_code == 200, address
        assert file.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in file.headers["cache-control"]
        alone = page.headers["content-security-policy"].replace("trusted-types understudy", "trusted-types 'none'")
        assert file.headers["content-security-policy"] == alone


async def test_a_person_who_types_the_host_only_gets_to_the_page(client: httpx.AsyncClient) -> None:
    for path in ("/", "/admin"):
        reply = await client.get(path)
        assert (reply.status_code, reply.headers["location"]) == (307, "/admin/")


async def test_a_file_that_a_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    for path in ("/admin/static/page.css", f"/admin/static/{page_assets().build}/vendor/uPlot.iife.min.js"):
        first = await client.get(path)
        again = await client.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert (await client.get("/admin/static/page.css")).headers["cache-control"] == "no-cache"


async def test_a_page_of_another_release_gets_the_files_there_are_and_keeps_none(client: httpx.AsyncClient) -> None:
    reply = await client.get("/admin/static/0123456789abcdef/main.js")
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize("path", ["", "nothing.js", "../assets.py", "..%2fassets.py", "vendor", "vendor/CHECKSUMS"])
async def test_nothing_but_the_pages_files_is_served(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(f"/admin/static/{path}")
    assert reply.status_code in {400, 404}
    assert reply.headers["content-type"] == "application/problem+json"


def test_what_is_vendored_is_what_was_reviewed() -> None:
    listed = dict(line.split()[::-1] for line in (STATIC / "vendor" / "CHECKSUMS").read_text().splitlines())
    there = {path.name for path in (STATIC / "vendor").iterdir()} - {"CHECKSUMS"}
    assert set(listed) == there
    for name, digest in listed.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_no_script_makes_markup_of_a_text_but_the_one_that_takes_what_the_router_has_drawn() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
                       r"|parseFromString|\beval\(|new Function|srcdoc|setHTML")  # fmt: skip
    for path in STATIC.glob("*.js"):
        expected = ["parseFromString"] if path.name == "dom.js" else []
        assert sinks.findall(path.read_text()) == expected, path.name


@pytest.mark.skipif(which("node") is None, reason="no node to check the scripts' syntax with")
def test_every_script_is_valid() -> None:
    scripts = sorted(STATIC.glob("*.js"))
    assert len(scripts) > 10
    for path in scripts:
        kind = "commonjs" if path.name == "theme-first.js" else "module"
        checked = subprocess.run(
            ["node", f"--input-type={kind}", "--check"],
            input=path.read_text(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, f"{path.name}: {checked.stderr}"


def test_every_module_that_is_imported_exists_and_exports_what_is_imported() -> None:
    exported = re.compile(r"^export (?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
    imported = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";', re.MULTILINE)
    exports = {path.name: set(exported.findall(path.read_text())) for path in STATIC.glob("*.js")}
    for path in STATIC.glob("*.js"):
        for names, module in imported.findall(path.read_text()):
            wanted = {name.strip() for name in names.split(",") if name.strip()}
            wanted = {name.partition(" as ")[0] for name in wanted}
            assert wanted <= exports.get(module, set()), f"{path.name} imports {wanted - exports.get(module, set())}"


def test_every_element_that_a_script_asks_for_is_on_the_page() -> None:
    html = rendered(healthy())
    ids = set(re.findall(r'\bid="([\w-]+)"', html)) | {"ask-json"}  # which ask.js makes
    scripts = [path for path in STATIC.glob("*.js") if path.name != "fleet.js"]  # of the page of applications
    asked = {name for path in scripts for name in re.findall(r'byId\("([\w-]+)"\)', path.read_text())}
    assert asked - ids == set()


async def test_a_large_page_is_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count_turns())
    overview = large(1024)
    for row in overview["grid"]["rows"]:
        row["cells"] = {node_id: {**cell, "lag": 9} for node_id, cell in row["cells"].items()}  # none shares a row
    pieces = list(page_pieces(overview, _histories(), PageQuery(), "build"))
    assert len(await joined(pieces)) > 100_000
    counting.cancel()
    assert turns >= len(pieces)


def _histories() -> Mapping[str, Mapping[str, Any]]:
    return {"all": history()}


def test_snapshot_leases_are_a_section_only_while_there_are_any() -> None:
    shown = healthy()
    assert '<section aria-labelledby="snapshots-title" id="snapshots-part" hidden>' in rendered(shown)
    shown["snapshots"] = {"held": 73, "oldest": [lease(holder="<b>me</b>")]}
    text = rendered(shown)
    assert '<section aria-labelledby="snapshots-title" id="snapshots-part">' in text
    assert "73 held" in text
    assert "&lt;b&gt;me&lt;/b&gt;" in text
