"""What a device gets: the wheel and its base dependencies, in an environment with nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROMPT = "The quick brown fox jumps over the lazy dog, and the quick brown fox"
OTHERS = ("python3.12", "python3.13", "python3.14")


@dataclass(frozen=True)
class Device:
    """An environment of its own: ``onnxruntime`` is the version asked for, None for whatever pip chose."""

    folder: Path
    onnxruntime: str | None

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.folder / "bin" / "python", *arguments)

    def edgepipe(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self._run(self.folder / "bin" / "edgepipe", *arguments)

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["EDGEPIPE_CACHE_DIR"] = str(self.folder / "cache")
        done = subprocess.run(command, capture_output=True, cwd=self.folder, env=environment)
        # Not as text, which would make a line's end of a carriage return.
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(
    scope="module",
    params=[(sys.executable, "1.29"), (sys.executable, None), *((python, None) for python in OTHERS)],
    ids=["onnxruntime1.29", "newest", *OTHERS],
)
def device(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Device:
    name, onnxruntime = request.param
    interpreter = shutil.which(name)
    if interpreter is None or subprocess.run([interpreter, "-c", "import ensurepip"], capture_output=True).returncode:
        pytest.skip(f"{name} is not installed, or cannot make environments")
    made = Device(tmp_path_factory.mktemp("device"), onnxruntime)
    subprocess.run([interpreter, "-m", "venv", str(made.folder)], check=True)
    reach = made.python("-m", "pip", "install", "--dry-run", "--no-deps", "click")
    if reach.returncode:
        pytest.skip(f"pip reaches no index: {reach.stderr.strip().splitlines()[-1]}")
    pins = [f"onnxruntime=={onnxruntime}.*"] if onnxruntime else []
    done = made.python("-m", "pip", "install", "--only-binary", ":all:", str(wheel), *pins)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def int4_bundle(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.pipeline.export import export
    from edgepipe.pipeline.recipe import Recipe

    folder = tmp_path_factory.mktemp("int4") / "bundle"
    export(Recipe(DecoderRecipe(str(tiny_model("llama")), precision="int4"), validate=False), folder)
    return folder


def test_it_holds_what_a_device_needs_and_no_more(device: Device) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    required = [requirement for extra in ("tokenizers", "export") for requirement in extras[extra]]
    wanted = [re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in required]
    assert {"torch", "transformers", "tokenizers", "onnx", "ai_edge_litert"} <= set(wanted)
    wanted.remove("flatbuffers")  # onnxruntime brings it
    look = "import sys, importlib.util as u; print([name for name in sys.argv[1:] if u.find_spec(name)])"
    assert device.python("-c", look, *wanted, "click").stdout == "['click']\n"
    found = device.python("-c", "import onnxruntime; print(onnxruntime.__version__)").stdout
    assert device.onnxruntime is None or found.startswith(f"{device.onnxruntime}.")


def test_the_command_is_there(device: Device) -> None:
    done = device.edgepipe("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(re.search(rf"^  {verb} ", done.stdout, re.MULTILINE) for verb in ("export", "run", "measure"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--drafter", "none"],
        ["--drafter", "lookup", "--gamma", "4"],
        ["--drafter", "model", "--gamma", "3"],
        ["--drafter", "lookup", "--gamma", "4", "--policy", "h2o", "--budget", "24"],
        [
            "--drafter",
            "model",
            "--gamma",
            "3",
            "--policy",
            "h2o",
            "--budget",
            "50%",
            "--seed",
            "7",
            "--temperature",
            "1",
        ],
    ],
    ids=["plain", "lookup", "model", "h2o", "sampled"],
)
def test_it_answers_as_the_workstation_does(device: Device, tiny_bundle: Path, flags: list[str]) -> None:
    arguments = ["run", str(tiny_bundle), PROMPT, "-n", "48", *flags]
    there = device.edgepipe(*arguments, "--json")
    assert (there.returncode, there.stderr) == (0, "")
    here = subprocess.run([sys.executable, "-m", "edgepipe", *arguments, "--json"], capture_output=True, check=True)
    ours, theirs = json.loads(here.stdout), json.loads(there.stdout)
    for key in ("text", "tokens", "prompt_tokens", "finish_reason", "acceptance_rate", "kv_bytes"):
        assert theirs[key] == ours[key]
    assert len(theirs["tokens"]) > 8
    streamed = device.edgepipe(*arguments)
    assert (streamed.returncode, streamed.stdout) == (0, ours["text"] + "\n")


@pytest.mark.parametrize("bundle", ["tiny_bundle", "int4_bundle"])
def test_it_verifies_a_bundle(device: Device, bundle: str, request: pytest.FixtureRequest) -> None:
    done = device.edgepipe("run", request.getfixturevalue(bundle), "--verify", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    outcome = json.loads(done.stdout)
    assert outcome["verified"] is True
    assert outcome["tokens"] == 48 * len(outcome["components"])


def test_it_measures(device: Device, tiny_bundle: Path, tmp_path: Path) -> None:
    small = ("--prompt-lengths", "16", "-n", "8", "--repeats", "2", "--max-width", "4", "--against", "plain")
    done = device.edgepipe("measure", tiny_bundle, "-o", tmp_path / "report", *small, "--json")
    assert done.returncode in (0, 5), done.stderr  # 5: the machine is busy, which is for the report to say
    assert done.stderr == ""
    report: dict[str, Any] = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
    assert report == json.loads(done.stdout)
    assert [len(prompt["measured"]["samples"]) for prompt in report["prompts"]] == [2]
    assert (tmp_path / "report" / "report.md").is_file()


def test_it_runs_images_in_the_engine_that_it_has(device: Device, vision_bundle: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8))
    there = device.edgepipe("run", vision_bundle, "--image", tmp_path / "image.npy", "--json")
    assert (there.returncode, there.stderr) == (0, "")
    here = [sys.executable, "-m", "edgepipe", "run", str(vision_bundle), "--image", str(tmp_path / "image.npy")]
    ours = json.loads(subprocess.run([*here, "--engine", "onnx", "--json"], capture_output=True, check=True).stdout)
    theirs = json.loads(there.stdout)
    assert theirs["engine"] == "onnx"
    assert theirs["output"] == ours["output"]
    verified = device.edgepipe("run", vision_bundle, "--verify")
    assert (verified.returncode, verified.stderr) == (0, "")
    done = device.edgepipe("measure", vision_bundle, "-o", tmp_path / "report", "--repeats", "2", "--json")
    assert done.returncode in (0, 5), done.stderr
    assert json.loads(done.stdout)["vision"]["engine"] == "onnx"


def test_images_say_what_to_install(device: Device, vision_bundle: Path) -> None:
    for extra, flags in (("vision", ["image.png"]), ("litert", ["image.npy", "--engine", "litert"])):
        done = device.edgepipe("run", vision_bundle, "--image", *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(rf"error: .+ is not installed: pip install 'edgepipe\[{extra}\]'\n", done.stderr)


def test_export_says_what_to_install(device: Device, tmp_path: Path) -> None:
    done = device.edgepipe("export", "--target", "smollm2-135m", "-o", tmp_path / "bundle")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: \w+ is not installed: pip install 'edgepipe\[export\]'\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
