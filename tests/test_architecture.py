"""The floors of the project hold: what may import what, and what `import edgepipe` may cost."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("edgepipe", "devices", "exporters", "pipeline", "runtimes")
VERBS = ("export", "run", "measure", "completion")

# Run in a process of its own: which of the given packages does a piece of code load?
LOADED = """
import json, sys
watched = json.loads(sys.argv[1])
try:
    exec(sys.argv[2])
except SystemExit as exit:
    assert not exit.code, exit.code
print(json.dumps([name for name in watched if name in sys.modules]), file=sys.stderr)
"""

# Import every module of a package while packages that a device lacks cannot be imported.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
for root in ("edgepipe.runtimes", "edgepipe.devices"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        importlib.import_module(module.name)
        print(module.name)
"""


def python(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script away from the repository, whose folders would otherwise be importable under their bare names."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the project: its imported name and its file."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if folder == "edgepipe" else ("edgepipe", *parts)
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path) -> Iterator[str]:
    """Names that a file imports, at any depth, except for type checkers only; ``from a import b`` gives a and a.b."""

    def visit(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")))


def test_no_import_cycles() -> None:
    files = dict(modules())
    assert len(files) > 20, "the modules were not found"
    # Importing a.b.c also runs a and a.b, but those are empty or lazy: what counts is who asks for whom.
    graph = {name: {target for target in imports(path) if target in files} - {name} for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


def test_every_package_is_distributed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert listed == {name for name, path in modules() if path.name == "__init__.py"}
    for name, path in modules():
        assert (path.parent / "__init__.py").exists(), f"{name} stands in a folder without __init__.py"


def test_device_code_imports_without_workstation_packages(tmp_path: Path) -> None:
    absent = ["torch", "transformers", "onnx", "tokenizers", "gguf", "optimum", "safetensors", "huggingface_hub"]
    done = python(IMPORT_ALL, json.dumps(absent), cwd=tmp_path)
    expected = {name for name, _ in modules() if name.startswith(("edgepipe.runtimes.", "edgepipe.devices."))}
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize(
    "code",
    [
        "import edgepipe; edgepipe.__version__",
        "from edgepipe.pipeline.cli import main; main(['--help'])",
        "from edgepipe.pipeline.cli import main; main(['--version'])",
        *(f"from edgepipe.pipeline.cli import main; main(['{verb}', '--help'])" for verb in VERBS),
    ],
)
def test_starting_is_light(code: str, tmp_path: Path) -> None:
    heavy = ["torch", "transformers", "onnx", "onnxruntime", "numpy", "rich", "jinja2"]
    done = python(LOADED, json.dumps(heavy), code, cwd=tmp_path)
    assert json.loads(done.stderr) == []


def test_import_edgepipe_loads_no_command_line(tmp_path: Path) -> None:
    done = python(LOADED, json.dumps(["click", "edgepipe.pipeline"]), "import edgepipe", cwd=tmp_path)
    assert json.loads(done.stderr) == []
