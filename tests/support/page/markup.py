"""A page taken apart: what a test looks for in its HTML."""

from __future__ import annotations

from html.parser import HTMLParser


class Markup(HTMLParser):
    """The tags, attributes and texts of a page. Ids and texts of its templates are left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self._words: list[str] = []
        self._is_template = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._is_template += tag == "template"
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href" and tag == "a"]
        self.ids += [value or "" for name, value in attrs if name == "id" and not self._is_template]

    def handle_endtag(self, tag: str) -> None:
        self._is_template -= tag == "template"

    def handle_data(self, data: str) -> None:
        if not self._is_template:
            self._words.append(data)

    @property
    def inline(self) -> list[str]:
        """The attributes that have a style or a script in them."""
        return [name for name in self.attributes if name == "style" or name.startswith("on")]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._words).split())
