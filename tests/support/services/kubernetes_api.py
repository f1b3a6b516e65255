"""What a real API server of Kubernetes says, asked by HTTP as its administrator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import httpx
from tests.support.services.certificates import Signer
from tests.support.services.helm_chart import Manifest
from tests.support.spark.queries import wait_until

TOKEN = "a-token-of-the-test"
_TIMEOUT_S = 30


class RefusedError(Exception):
    """The API server refused an object; the text is its own."""


class Server:
    """What an API server says, asked as an administrator."""

    def __init__(self, port: int, authority: Signer) -> None:
        self._authority = authority
        self.url = f"https://127.0.0.1:{port}"
        self._http = httpx.Client(
            base_url=self.url,
            verify=authority.client(),
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=_TIMEOUT_S,
        )

    def close(self) -> None:
        self._http.close()

    def kubeconfig(self, folder: Path) -> Path:
        """A file for programs that ask this server as the same administrator."""
        cluster = {"server": self.url, "certificate-authority": str(self._authority.file)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        file = folder / "kubeconfig"
        file.write_text(json.dumps(document))  # JSON is YAML
        return file

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Manifest:
        """An object. Raises RefusedError."""
        return self._answer(self._http.get(path))

    def apply(self, manifest: Manifest, namespace: str) -> tuple[Manifest, list[str]]:
        """Apply it server-side and strictly: the object as it is kept, and the warnings. Raises RefusedError."""
        path = f"{self._path(manifest, namespace)}/{manifest['metadata']['name']}"
        return self._written(
            self._http.patch(
                path,
                params={"fieldManager": "understudy", "fieldValidation": "Strict"},
                headers={"Content-Type": "application/apply-patch+yaml"},
                json=manifest,
            )
        )

    def try_to_create(self, text: str, manifest: Manifest, namespace: str) -> list[str]:
        """The warnings of a creation that is not carried out. The text is sent as it is. Raises RefusedError."""
        _, warnings = self._written(
            self._http.post(
                self._path(manifest, namespace),
                params={"fieldValidation": "Strict", "dryRun": "All"},
                headers={"Content-Type": "application/yaml"},
                content=text,
            )
        )
        return warnings

    def knows(self, manifest: Manifest) -> bool:
        answer = self._http.get(f"/apis/{manifest['apiVersion']}")
        return answer.is_success and manifest["kind"] in {each["kind"] for each in answer.json()["resources"]}

    def define(self, definition: Manifest) -> None:
        """Make a kind, also as another cluster says it is, and return when it is there."""
        spec, name = definition["spec"], definition["metadata"]["name"]
        bare = {"apiVersion": definition["apiVersion"], "kind": definition["kind"], "metadata": {"name": name}}
        self.apply(bare | {"spec": spec}, "")
        kind = {"apiVersion": f"{spec['group']}/{spec['versions'][0]['name']}", "kind": spec["names"]["kind"]}
        wait_until(lambda: self.knows(kind), what=str(kind), limit_s=_TIMEOUT_S, every_s=0.1)

    def make_namespace(self, name: str, labels: Mapping[str, str]) -> str:
        metadata = {"name": name, "labels": dict(labels)}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, "")
        return name

    def scale(self, kind: str, name: str, replicas: int, namespace: str) -> None:
        """What `kubectl scale` does. Raises RefusedError."""
        path = f"{self._path({'apiVersion': 'apps/v1', 'kind': kind}, namespace)}/{name}/scale"
        headers = {"Content-Type": "application/merge-patch+json"}
        body = {"spec": {"replicas": replicas}}
        self._answer(self._http.patch(path, params={"fieldManager": "kubectl"}, headers=headers, json=body))

    def delete_leaving_pods(self, kind: str, name: str, namespace: str) -> None:
        """What `kubectl delete --cascade=orphan` does. Raises RefusedError."""
        path = f"{self._path({'apiVersion': 'apps/v1', 'kind': kind}, namespace)}/{name}"
        self._answer(self._http.delete(path, params={"propagationPolicy": "Orphan"}))

    def find(self, api: str, kind: str, name: str, namespace: str) -> Manifest:
        """An object. Raises RefusedError."""
        return self.get(f"{self._path({'apiVersion': api, 'kind': kind}, namespace)}/{name}")

    def of_kind(self, api: str, kind: str, namespace: str) -> list[Manifest]:
        """Every object of a kind in a namespace."""
        found: list[Manifest] = self.get(self._path({"apiVersion": api, "kind": kind}, namespace))["items"]
        return found

    def _path(self, manifest: Manifest, namespace: str) -> str:
        api, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        kinds = {each["kind"]: each for each in self.get(root)["resources"] if "/" not in each["name"]}
        if kind not in kinds:
            raise RefusedError(f"no kind {kind} in {api}")
        inside = f"/namespaces/{namespace}" if kinds[kind]["namespaced"] else ""
        return f"{root}{inside}/{kinds[kind]['name']}"

    def _written(self, answer: httpx.Response) -> tuple[Manifest, list[str]]:
        return self._answer(answer), answer.headers.get_list("Warning")

    def _answer(self, answer: httpx.Response) -> Manifest:
        document: Manifest = answer.json()
        if answer.is_error:
            raise RefusedError(f"{document.get('reason')}: {document.get('message')}")
        return document
