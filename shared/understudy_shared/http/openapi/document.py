"""`/openapi.json` and `/docs` of a service, made from the `openapi.json` beside this module.

That file describes every call of every service. `x-services` names the services that have a part; without it all have
it. `x-router` has the members of a part that differ at a router. `x-fleet` marks a call that a service of several
applications answers for all of them: `only` if a service of one application lacks the call, otherwise the members that
differ. In other calls of a fleet the path names the application. `x-bounds` stands for every bound of a read, which
`components/parameters` describes once. The document of a service has none of these marks.

`/docs` is one HTML page without scripts. A page that loads Swagger UI would show nothing without the network, and would
run scripts of another site next to calls that change something.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import orjson
from fastapi import FastAPI, Request, Response

from understudy_shared.base.extras import PACKAGE
from understudy_shared.http.problems import ProblemType
from understudy_shared.reads.bound_parsing import BOUNDS

Json = dict[str, Any]


STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b656e; --line: #d9dee3; --ground: #fbfcfd; --box: #f1f4f6;
  --link: #0b5cad; --get: #1a6b3c; --post: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5af; --line: #333b43; --ground: #14181c;
  --box: #1e242a; --link: #7ab8f5; --get: #6fcf97; --post: #f2b266; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
.all { display: grid; grid-template-columns: 20rem minmax(0, 1fr); gap: 2rem; max-width: 76rem; margin: 0 auto;
  padding: 1rem; }
nav { position: sticky; top: 1rem; align-self: start; max-height: calc(100vh - 2rem); overflow: auto;
  font-size: .875rem; }
nav ul { list-style: none; margin: 0 0 1rem; padding: 0; }
nav li { padding: .125rem 0; overflow-wrap: anywhere; }
nav li a { text-decoration: none; }
nav li a:hover { text-decoration: underline; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .5rem; }
h1 small, nav p { color: var(--soft); font-weight: normal; font-size: .875rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
h3 { font-size: 1rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere; }
h4 { font-size: .875rem; color: var(--soft); margin: 1rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 45rem; }
a { color: var(--link); }
code, pre { font: .875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--box); border: 1px solid var(--line); border-radius: .25rem; padding: .5rem .75rem;
  margin: .25rem 0; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
.get, .post { font-weight: 700; } .get { color: var(--get); } .post { color: var(--post); }
.soft { color: var(--soft); }
summary { cursor: pointer; color: var(--link); font-size: .875rem; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
@media (max-width: 50rem) { .all { display: block; } nav { position: static; max-height: none; }
  .table { overflow-x: auto; } }
"""


HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""The headers of the page. They allow its own style, but no loading, scripts, forms or framing."""


def page(document: Json, address: str) -> str:
    """Return the page. `address` is that of the service, for the commands."""
    info = document["info"]
    title = f"{escape(info['title'])} <small>{escape(info['version'])}</small>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<title>{escape(info["title"])}: calls</title><style>{STYLE}</style></head><body><div class="all">'
        f'<nav aria-label="Calls">{"".join(_contents(document))}</nav>'
        f"<main><h1>{title}</h1>{_text(info['description'])}"
        f"<p>The commands below use</p><pre>url={escape(address)}</pre>"
        f"{''.join(_calls(document))}{''.join(_schemas(document))}</main></div></body></html>\n"
    )


def _contents(document: Json) -> Iterator[str]:
    yield '<p><a href="openapi.json">openapi.json</a></p>'
    for tag, operations in _by_tag(document):
        yield f"<p>{escape(tag['name'])}</p><ul>"
        for method, path, each in operations:
            yield f'<li><a href="#{each["operationId"]}">{_head(method, path)}</a></li>'
        yield "</ul>"
    yield '<p><a href="#schemas">Schemas</a></p>'


def _by_tag(document: Json) -> Iterator[tuple[Json, list[tuple[str, str, Json]]]]:
    """Yield each tag with its operations: method, path, operation."""
    every = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in document["tags"]:
        yield tag, [each for each in every if tag["name"] in each[2]["tags"]]


def _calls(document: Json) -> Iterator[str]:
    for tag, operations in _by_tag(document):
        yield f"<h2>{escape(tag['name'])}</h2>{_text(tag['description'])}"
        for method, path, operation in operations:
            yield f'<section><h3 id="{operation["operationId"]}">{_head(method, path)}</h3>'
            yield f"<p>{_inline(operation['summary'])}.</p>{_text(operation.get('description', ''))}"
            yield "".join(f"<pre>{escape(sample['source'])}</pre>" for sample in operation["x-codeSamples"])
            yield from _parameters(document, operation)
            yield from _body(operation)
            yield from _answers(document, operation)
            yield "</section>"


def _head(method: str, path: str) -> str:
    return f'<span class="{method}">{method.upper()}</span> <code>{escape(path)}</code>'


def _parameters(document: Json, operation: Json) -> Iterator[str]:
    rows = []
    for each in operation.get("parameters", ()):
        parameter = _resolved(document, each)
        schema = parameter.get("schema") or parameter["content"]["application/json"]["schema"]
        place = parameter["in"] + (", required" if parameter["required"] else "")
        name = f"<code>{escape(parameter['name'])}</code>"
        rows.append((name, place, _kind(schema), _inline(parameter["description"])))
    if rows:
        yield "<h4>Parameters</h4>" + _table(("name", "in", "is", ""), rows)


def _body(operation: Json) -> Iterator[str]:
    for content_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f'<h4>Body</h4><p>{_kind(content["schema"])} <span class="soft">{escape(content_type)}</span></p>'
        yield _example(content)


def _answers(document: Json, operation: Json) -> Iterator[str]:
    rows, examples = [], []
    for status, each in operation["responses"].items():
        response = _resolved(document, each)
        contents = response.get("content", {}).values()
        kinds = " or ".join(_kind(content["schema"]) for content in contents)
        rows.append((escape(status), kinds or "no body", _inline(response["description"])))
        examples += [_example(content, f"Example of {status}") for content in contents]
    yield "<h4>Answers</h4>" + _table(("status", "is", ""), rows) + "".join(examples)


def _schemas(document: Json) -> Iterator[str]:
    yield '<h2 id="schemas">Schemas</h2><p>A member in italics may be left out.</p>'
    for name, schema in document["components"]["schemas"].items():
        yield f'<section><h3 id="schema-{name}">{name}</h3>{_text(schema.get("description", ""))}'
        if "properties" in schema:
            required = schema.get("required", ())
            rows = [
                (
                    f"<code>{escape(member)}</code>" if member in required else f"<i><code>{escape(member)}</code></i>",
                    _kind(each),
                    _inline(each.get("description", "")),
                )
                for member, each in schema["properties"].items()
            ]
            yield _table(("member", "is", ""), rows)
        else:
            yield f"<p>{_kind(schema)}</p>"
        yield "</section>"


def _kind(schema: Json) -> str:
    """Return a short description of a schema's type."""
    # One branch for each form of a JSON Schema, the most specific first.
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{name}">{name}</a>'
    if "allOf" in schema:
        return _kind(schema["allOf"][0])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_kind(each) for each in schema[choice]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"<code>{escape(orjson.dumps(value).decode())}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    types = schema.get("type", "any value")
    said = " or ".join(types) if isinstance(types, list) else types
    if "format" in schema:
        said += f", {schema['format']}"
    limits = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return escape(" ".join([said, *limits]))


def _example(content: Json, title: str = "Example") -> str:
    if "example" not in content:
        return ""
    value = content["example"]
    shown = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return f"<details><summary>{escape(title)}</summary><pre>{escape(shown)}</pre></details>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(text: str) -> str:
    """Return a plain text of the document as paragraphs, with markup only for `code` and **bold**."""
    return "".join(f"<p>{_inline(part)}</p>" for part in text.split("\n\n") if part.strip())


def _inline(text: str) -> str:
    return _MARKED.sub(_mark, escape(text))


def _mark(found: re.Match[str]) -> str:
    code, bold = found.groups()
    return f"<b>{bold}</b>" if code is None else f"<code>{code}</code>"


_MARKED = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")


def _resolved(document: Json, part: Json) -> Json:
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    found: Json = document["components"][kind][name]
    return found


ONLY = "only"
_ROOTS = ("/v1", "/admin/v1")
_PARAMETER = {"$ref": "#/components/parameters/application"}
_UNKNOWN = ProblemType.UNKNOWN_APPLICATION
_UNKNOWN_RESPONSE = {"$ref": f"#/components/responses/404-{_UNKNOWN.slug}"}


def paths_of_a_fleet(paths: Json, *, is_router: bool) -> Json:
    """Return the paths of the source. The path of each call of an application now names its application."""
    found: Json = {}
    for path, methods in paths.items():
        below = _below_an_application(path)
        for method, each in methods.items():
            call = {**each, **each.get("x-router", {}), "x-router": {}} if is_router else each
            of_all = call.get("x-fleet")
            if below is None or of_all == ONLY:
                found.setdefault(path, {})[method] = call
                continue
            if of_all is not None:
                responses = _in_order({**call["responses"], **of_all.get("responses", {})})
                found.setdefault(path, {})[method] = {**call, **of_all, "x-fleet": {}, "responses": responses}
            found.setdefault(below, {})[method] = _of_an_application(call)
    return found


def add_unknown_application(responses: Iterable[Json]) -> None:
    """Add the problem of an unknown application to each response of status 404 that has other problems."""
    for response in responses:
        schema = response["content"]["application/problem+json"]["schema"]
        types = schema["dependentSchemas"]["type"]["properties"]["type"]["enum"]
        if _UNKNOWN.slug not in types:
            types.append(_UNKNOWN.slug)
            response["description"] += f"; {_UNKNOWN.title} (`{_UNKNOWN.slug}`)"


def _below_an_application(path: str) -> str | None:
    """Return the path of a call below its application; None for a call of the whole service."""
    for root in _ROOTS:
        if path.startswith(f"{root}/"):
            return f"{root}/applications/{{application}}{path.removeprefix(root)}"
    return None


def _of_an_application(call: Json) -> Json:
    samples = [{**each, "source": _sample(each["source"])} for each in call["x-codeSamples"]]
    return {
        **{name: part for name, part in call.items() if name != "x-fleet"},
        "parameters": [_PARAMETER, *call.get("parameters", ())],
        "responses": _in_order({"404": _UNKNOWN_RESPONSE, **call["responses"]}),
        "x-codeSamples": samples,
    }


def _sample(command: str) -> str:
    for root in _ROOTS:
        command = command.replace(f"$url{root}/", f"$url{root}/applications/flights/")
    return command


def _in_order(responses: Json) -> Json:
    return dict(sorted(responses.items()))


Service = Literal["serve", "node", "router"]

_SOURCE = Path(__file__).with_name("openapi.json")
_MARKS = {"x-services", "x-router", "x-fleet"}
_BOUNDS = "x-bounds"
TAKES_BACK = " `none` takes back the default of the store."
"""The end of the description of each bound for which a store may have a default."""
_COMPONENTS = "#/components/"
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")


def add_document(
    http: FastAPI, service: Service, *, is_fleet: bool = False, is_guarded: bool = False, root_path: str = ""
) -> None:
    """Serve `/openapi.json` and `/docs`, made at their first request.

    `is_fleet`: the service has several applications. `is_guarded`: it requires credentials. `root_path`:
    the prefix under which a proxy publishes it.
    """

    def complete() -> dict[str, Any]:
        if http.openapi_schema is None:
            found = document(service, is_fleet=is_fleet, is_guarded=is_guarded)
            http.openapi_schema = found | ({"servers": [{"url": root_path}]} if root_path else {})
        return http.openapi_schema

    http.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to replace it

    @http.get("/docs")
    async def docs(request: Request) -> Response:
        address = _address(request.url.scheme, request.headers.get("host", "")) + root_path
        return Response(page(complete(), address), media_type="text/html", headers=HEADERS)


def read_source() -> Json:
    """Return the document of all services, with all marks except `x-bounds`."""
    source: Json = orjson.loads(_SOURCE.read_bytes())
    bounds = {name: source["components"]["parameters"][name] for name in BOUNDS}
    for methods in source["paths"].values():
        for call in methods.values():
            if {_BOUNDS: "parameters"} in (parameters := call.get("parameters", [])):
                place = parameters.index({_BOUNDS: "parameters"})
                parameters[place : place + 1] = [{"$ref": f"{_COMPONENTS}parameters/{name}"} for name in bounds]
    for schema in source["components"]["schemas"].values():
        match schema.get("properties", {}).pop(_BOUNDS, None):
            case "properties":
                schema["properties"] |= {name: bound["schema"] for name, bound in bounds.items()}
            case "properties or null":
                schema["properties"] = {name: _or_null(bound) for name, bound in bounds.items()} | schema["properties"]
    return source


def _or_null(bound: Json) -> Json:
    schema = {**bound["schema"], "type": [bound["schema"]["type"], "null"]}
    choices = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, **choices, "description": bound["description"].removesuffix(TAKES_BACK)}


def document(service: Service, *, is_fleet: bool = False, is_guarded: bool = False) -> Json:
    """Return the document of a service: its calls, and only the components that they refer to."""
    source = read_source()
    if is_fleet:
        source["paths"] = paths_of_a_fleet(source["paths"], is_router=service == "router")
    found: Json = _cut(source, service, is_fleet)
    info, components = found["info"], found["components"]
    info["version"] = version(PACKAGE)
    said = {"role": info.pop("x-role"), "applications": info.pop("x-applications")}
    info["description"] = "\n\n".join(info["description"]).format(**said)
    found["paths"] = {path: methods for path, methods in found["paths"].items() if methods}
    if is_fleet:
        add_unknown_application(_not_found(found))
    if not is_guarded:
        del found["security"], components["securitySchemes"]
    needed = _reached(found["paths"], components)
    for kind, parts in components.items():
        if kind != "securitySchemes":
            components[kind] = {name: part for name, part in parts.items() if f"{kind}/{name}" in needed}
    return found


def _not_found(document: Json) -> Iterator[Json]:
    """Yield each response of status 404, shared or of one call."""
    yield from (part for name, part in document["components"]["responses"].items() if name.startswith("404"))
    for methods in document["paths"].values():
        for call in methods.values():
            if "content" in (response := call["responses"].get("404", {})):
                yield response


def references(part: object) -> Iterator[str]:
    """Yield the names of the components that a part of a document refers to, such as `schemas/Lag`."""
    if isinstance(part, dict):
        target = part.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(_COMPONENTS)
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def _cut(part: Any, service: Service, is_fleet: bool) -> Any:
    """Return the part in the form of one service."""
    if isinstance(part, list):
        return [_cut(each, service, is_fleet) for each in part]
    if not isinstance(part, dict):
        return part
    of_a_router = part.get("x-router", {}) if service == "router" else {}
    of_a_fleet = part.get("x-fleet", {}) if is_fleet and part.get("x-fleet") != ONLY else {}
    return {
        name: _cut(value, service, is_fleet)
        for name, value in (part | of_a_router | of_a_fleet).items()
        if name not in _MARKS and _has(service, is_fleet, value)
    }


def _has(service: Service, is_fleet: bool, part: object) -> bool:
    if not isinstance(part, dict):
        return True
    return service in part.get("x-services", (service,)) and (is_fleet or part.get("x-fleet") != ONLY)


def _reached(paths: Json, components: Json) -> set[str]:
    """Return the names of all components that paths refer to, and that these components refer to."""
    needed: set[str] = set()
    found = set(references(paths))
    while found - needed:
        needed |= found
        parts = [components[kind][name] for kind, _, name in (each.partition("/") for each in found)]
        found = set(references(parts))
    return needed


def _address(scheme: str, host: str) -> str:
    """Return the address at which the client reached this service, or a default if the header is malformed."""
    return f"{scheme}://{host}" if _HOST.fullmatch(host) else "http://127.0.0.1:8080"
