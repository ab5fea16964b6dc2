"""Hub ids, against a small server that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError
from edgepipe.exporters.sources import open_source

pytest.importorskip("huggingface_hub")
pytest.importorskip("transformers")

TinyModel = Callable[..., Path]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves repositories ``{id: {file name: content}}``; ``asked`` lists the files that were fetched."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repositories = repositories
        self.asked: list[str] = []
        self.requests = 0


class _Answers(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests += 1
        path = self.path.split("?")[0]
        if match := re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/(.+))?", path):
            self._api(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            self._file(match[1], match[3])
        else:
            self._answer(404, b"{}")

    def _api(self, name: str, what: str | None, revision: str | None) -> None:
        if name == "locked/model":
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            return
        files = self.server.repositories.get(name)
        if files is None:
            self._answer(401 if name == "private/model" else 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in (None, "main", COMMIT):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif what == "tree":
            listing = [
                {"type": "file", "path": file, "size": len(content), "oid": _etag(content)}
                for file, content in files.items()
            ]
            self._answer(200, json.dumps(listing).encode())
        else:
            siblings = [{"rfilename": file} for file in files]
            self._answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    def _file(self, name: str, file: str) -> None:
        content = self.server.repositories[name][file]
        if self.command == "GET":
            self.server.asked.append(file)
        self._answer(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub, with an empty local cache."""
    from huggingface_hub import constants

    folder = tiny_model("llama", tied=False, max_shard_size="60KB")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["README.md"] = b"---\nlicense: apache-2.0\n---\n# Tiny\n"
    files |= {
        "pytorch_model.bin": b"pickle",
        "modeling_tiny.py": b"raise SystemExit('remote code ran')",
        "consolidated.safetensors": b"a second copy",
        "onnx/config.json": b"{}",
    }
    only_pickles = {"config.json": files["config.json"], "pytorch_model.bin": b"pickle"}
    server = FakeHub({"tiny/model": files, "tiny/pickles": only_pickles})
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def offline(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and the hub client believes that HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_hub_id_is_downloaded_once_and_pinned(hub: FakeHub, offline: Callable[[], None]) -> None:
    first = open_source("tiny/model")
    assert (first.info.kind, first.info.name, first.info.revision) == ("hugging_face", "tiny/model", COMMIT)
    assert first.info.licence == "Apache-2.0"
    wanted = {name for name in hub.repositories["tiny/model"] if name.endswith((".json", ".jinja", ".safetensors"))}
    assert set(hub.asked) == wanted - {"consolidated.safetensors", "onnx/config.json"} | {"README.md"}

    asked = hub.requests
    assert open_source("tiny/model").info == first.info
    assert open_source("tiny/model", COMMIT).info == first.info
    offline()
    again = open_source("tiny/model")
    assert hub.requests == asked  # the cache is enough
    np.testing.assert_array_equal(again.tensor("lm_head.weight"), first.tensor("lm_head.weight"))


def test_a_partial_cache_is_completed(hub: FakeHub, tmp_path: Path) -> None:
    first = open_source("tiny/model")
    shard = next((tmp_path / "hub").rglob("snapshots/*/model-00002*.safetensors"))
    shard.resolve().unlink()
    shard.unlink()
    hub.asked.clear()
    assert open_source("tiny/model").info == first.info
    assert hub.asked == [shard.name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody/nothing"], "no model nobody/nothing on the hub"),
        (["private/model"], "no model private/model on the hub, or no permission"),
        (["locked/model"], "locked/model asks for consent on its hub page"),
        (["tiny/model", "v9"], "tiny/model has no revision v9"),
        (["tiny/pickles"], "tiny/pickles has no model.safetensors.*convert them"),
        (["not a name"], "neither a file nor a folder, nor a hub id"),
        (["a/b/c"], "neither a file nor a folder, nor a hub id"),
    ],
)
def test_refusals_of_the_hub(hub: FakeHub, arguments: list[str], message: str) -> None:
    with pytest.raises(EdgepipeError, match=message) as refusal:
        open_source(*arguments)
    assert "\n" not in str(refusal.value)


def test_no_answer(hub: FakeHub, offline: Callable[[], None]) -> None:
    hub.shutdown()
    hub.server_close()
    with pytest.raises(EdgepipeError, match="the hub does not answer and tiny/model is not in the local cache"):
        open_source("tiny/model")
    offline()
    with pytest.raises(EdgepipeError, match="not in the local cache and HF_HUB_OFFLINE is set"):
        open_source("tiny/model")


def test_an_alias_comes_from_the_hub_if_that_answers(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "cache"))
    hub.repositories["HuggingFaceTB/SmolLM2-135M-Instruct"] = hub.repositories["tiny/model"]
    info = open_source("smollm2-135m").info
    assert (info.name, info.revision) == ("HuggingFaceTB/SmolLM2-135M-Instruct", COMMIT)
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_the_offline_variable_is_honoured(hub: FakeHub, tmp_path: Path) -> None:
    """In a process of its own: the hub client reads its environment when it is imported."""
    program = "from edgepipe.exporters.sources import open_source; open_source('tiny/model')"
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert "HF_HUB_OFFLINE is set" in result.stderr.splitlines()[-1]
    assert hub.requests == 0
