"""The calls of a service of several applications, from those of a service of one (pure).

A call of an application gets the application into its path. `x-fleet` says what the service answers for all of them:
`only` where a service of one has no such call, or else the members in which the call differs at its own path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from understudy_shared.http.problems import ProblemType

Json = dict[str, Any]

ONLY = "only"
_ROOTS = ("/v1", "/admin/v1")
_PARAMETER = {"$ref": "#/components/parameters/application"}
_UNKNOWN = ProblemType.UNKNOWN_APPLICATION
_UNKNOWN_RESPONSE = {"$ref": f"#/components/responses/404-{_UNKNOWN.slug}"}


def paths_of_a_fleet(paths: Json, *, is_router: bool) -> Json:
    """Return the paths of the source with each call of an application below its application."""
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
    """Return the path of a call in an application; None for a call of the whole service."""
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
