"""Exported programs: torch's own answer for those that it saved, and one line for all that could run code."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import UnsupportedModel

torch = pytest.importorskip("torch")
nn = torch.nn

from edgepipe.exporters.vision.exported_program import read_exported_program  # noqa: E402
from edgepipe.exporters.vision.models.built_in import build  # noqa: E402

Members = dict[str, bytes]


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def small_network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.MaxPool2d(2), nn.Dropout(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.Softmax(1),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """What torch.export.save writes for a small network, by the names after the archive's own."""
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    torch.export.save(torch.export.export(small_network(), (torch.zeros(1, 3, 16, 16),)), path)
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def written(path: Path, members: Members, root: str = "net/", **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(root + name, content)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UnsupportedModel) as raised:
        read_exported_program(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    return str(raised.value)


def networks() -> list[Any]:
    small = [pytest.param(lambda: (small_network(), (16, 16, 3)), id="small")]
    references = ("mobilenet_v1:0.25:96", "mobilenet_v2:0.35:96", "mcunet", "resnet8")
    return small + [pytest.param(lambda name=name: build(name), id=name) for name in references]


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("network", networks())
def test_a_program_answers_as_in_torch(
    network: Callable[[], tuple[Any, tuple[int, int, int]]], decomposed: bool, tmp_path: Path
) -> None:
    model, (rows, columns, channels) = network()
    image = torch.rand(1, channels, rows, columns)
    program = torch.export.export(model.eval(), (image,))
    torch.export.save(program.run_decompositions() if decomposed else program, tmp_path / "net.pt2")
    read, shape = read_exported_program(tmp_path / "net.pt2")
    assert shape == (rows, columns, channels)
    with torch.no_grad():
        np.testing.assert_allclose(read(image), model(image), rtol=1e-4, atol=1e-6)


def test_parts_and_constants_of_a_program(tmp_path: Path) -> None:
    class Parts(nn.Module):
        def forward(self, image: Any) -> Any:
            first, second = torch.chunk(image * torch.tensor([0.5]), 2, 3)
            return torch.cat([torch.clamp(first, min=float("-inf"), max=0.25), second[:, :, :4]], 2).mean((2, 3))

    image = torch.rand(1, 3, 8, 8)
    torch.export.save(torch.export.export(Parts(), (image,)), tmp_path / "parts.pt2")
    read, _ = read_exported_program(tmp_path / "parts.pt2")
    torch.testing.assert_close(read(image), Parts()(image))


@pytest.mark.parametrize("writer", ["pickle", "torch"])
@pytest.mark.parametrize(
    ("renamed", "pickled"),
    [
        ({}, "data/sample_inputs/x/y.pt"),
        ({}, "data/sample_inputs/other.pt"),
        ({}, "data/weights/model.pt"),
        ({}, "data/constants/model.pt"),
        ({}, "data/constants/custom_obj_0"),
        ({}, "data/aotinductor/model/model.so"),
        ({}, "serialized_state_dict.pt"),
        ({"models/model.json": "models/x/y.json"}, "data/sample_inputs/x/y.pt"),
        ({"models/model.json": "models/model.json/../x.json"}, "data/sample_inputs/model.json/../x.pt"),
    ],
)
def test_what_torch_would_unpickle_or_run(
    members: Members, tmp_path: Path, renamed: dict[str, str], pickled: str, writer: str
) -> None:
    evil = io.BytesIO()
    (pickle.dump if writer == "pickle" else torch.save)((Evil(tmp_path / "evil"),), evil)
    hostile = {renamed.get(name, name): content for name, content in members.items()} | {pickled: evil.getvalue()}
    assert "expected only what torch.export.save of torch 2.8 or newer writes" in refusal(
        written(tmp_path / "hostile.pt2", hostile)
    )
    assert not (tmp_path / "evil").exists()


def test_the_layout_of_torch_2_7(members: Members, tmp_path: Path) -> None:
    evil = pickle.dumps({"x": Evil(tmp_path / "evil")})
    old = {
        "version": b"8.20",
        "serialized_exported_program.json": members["models/model.json"],
        "serialized_state_dict.pt": evil,
        "serialized_constants.pt": evil,
        "serialized_example_inputs.pt": evil,
    }
    for root in ("", "net/"):
        assert "expected only what torch.export.save" in refusal(written(tmp_path / "old.pt2", old, root))
    assert not (tmp_path / "evil").exists()


def test_sample_inputs_are_never_opened(members: Members, tmp_path: Path) -> None:
    hostile = members | {"data/sample_inputs/model.pt": pickle.dumps(Evil(tmp_path / "evil"))}
    _, shape = read_exported_program(written(tmp_path / "net.pt2", hostile))
    assert shape == (16, 16, 3)
    assert not (tmp_path / "evil").exists()


def test_names_in_a_program_are_never_code(members: Members, tmp_path: Path) -> None:
    """Torch writes the names of inputs into a function's source, and imports what its tree specifications name."""
    code = f"x=__import__('os').mkdir({str(tmp_path / 'evil')!r})"
    program = json.loads(members["models/model.json"])
    image = program["graph_module"]["signature"]["input_specs"][-1]["user_input"]["arg"]["as_tensor"]["name"]
    program["guards_code"] = [code]
    program["graph_module"]["module_call_graph"] = [code]
    hostile = json.dumps(program).replace(f'"name": "{image}"', f'"name": {json.dumps(code)}')
    hostile = hostile.replace(f'"{image}": {{"dtype"', f'{json.dumps(code)}: {{"dtype"')
    path = written(tmp_path / "net.pt2", members | {"models/model.json": hostile.encode()})
    module, _ = read_exported_program(path)
    image = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(module(image), small_network()(image))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("part", "old", "new", "message"),
    [
        ("weights_config", '"use_pickle": false', '"use_pickle": true', "is a pickle, which could run code"),
        ("weights_config", '"weight_0"', '"../sample_inputs/model.pt"', "is a pickle, which could run code"),
        ("weights_config", '"as_int": 27', '"as_int": 27000', "cannot be read"),
        ("weights_config", '"sizes": [{"as_int": 8}', '"sizes": [{"as_int": 9}', "cannot be read"),
        ("models/", '"torch.ops.aten.softmax.int"', '"torch.ops.mine.softmax.int"', "operation 'torch.ops.mine."),
        ("models/", '"torch.ops.aten.softmax.int"', '"torch.ops.aten.from_file.default"', "operation 'torch.ops.aten."),
        ("models/", '"torch.ops.aten.softmax.int"', '"torch.ops.aten.softmax.__init__"', "this torch does not know"),
        ("models/", '"torch.ops.aten.softmax.int"', '"os.system"', "has the operation 'os.system'"),
        ("models/", '"as_int": 16', '"as_expr": {"expr_str": "1"}', "has dynamic shapes"),
        ("models/", '"as_int": 16', '"as_int": 65536', "expected at most 4194304 elements"),
        ("models/", '"as_bool": false', '"as_bool": true', "exported in training mode: call model.eval()"),
        ("models/", '"as_bool": false', '"as_operator": "os.system"', "takes an argument 'as_operator'"),
        ("models/", '"graph_module"', '"graph_modules"', "cannot be read as an exported program"),
        ("models/", '"major": 8', '"major": 9', "schema version 9: expected 8"),
        ("models/", '"user_output"', '"buffer_mutation"', "changes its own weights"),
        ("byteorder", "little", "big", "not little-endian"),
    ],
)
def test_programs_with_more_than_tensors_and_aten(
    members: Members, tmp_path: Path, part: str, old: str, new: str, message: str
) -> None:
    hostile = dict(members)
    for name in (name for name in members if part in name and "constants" not in name):
        assert old.encode() in members[name]
        hostile[name] = members[name].replace(old.encode(), new.encode())
    assert message in refusal(written(tmp_path / "net.pt2", hostile))


def test_dynamic_shapes(tmp_path: Path) -> None:
    shapes = ({2: torch.export.Dim("rows", min=8, max=64)},)
    exported = torch.export.export(nn.ReLU(), (torch.zeros(1, 3, 16, 16),), dynamic_shapes=shapes)
    torch.export.save(exported, tmp_path / "net.pt2")
    assert "has dynamic shapes: export it without" in refusal(tmp_path / "net.pt2")


@pytest.mark.parametrize("name", ["models/model.json", "data/weights/weight_0", "data/sample_inputs/model.pt"])
def test_an_archive_that_unpacks_to_more_than_a_model(members: Members, tmp_path: Path, name: str) -> None:
    options = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    path = written(tmp_path / "bomb.pt2", members | {name: bytes(2**28)}, **options)
    assert path.stat().st_size < 2**24
    assert "bytes: expected at most 268435456" in refusal(path)


def test_many_tensors_that_share_their_numbers(members: Members, tmp_path: Path) -> None:
    config = json.loads(members["data/weights/model_weights_config.json"])["config"]
    (entry,) = (entry for entry in config.values() if entry["path_name"] == "weight_0")
    config |= {f"more.{index}": entry for index in range(5000)}
    entry["tensor_meta"] |= {"sizes": [{"as_int": 2**16}], "strides": [{"as_int": 1}]}
    hostile = {"data/weights/model_weights_config.json": json.dumps({"config": config}).encode()}
    path = written(tmp_path / "net.pt2", members | hostile | {"data/weights/weight_0": bytes(2**18)})
    assert "has tensors of 26" in refusal(path)


def test_damaged_files(members: Members, tmp_path: Path) -> None:
    whole = written(tmp_path / "net.pt2", members).read_bytes()
    choices = random.Random(0)
    for content in (b"", b"PK", whole[:2000], whole[2000:], choices.randbytes(5000)):
        (tmp_path / "damaged.pt2").write_bytes(content)
        assert "cannot be read as an exported program" in refusal(tmp_path / "damaged.pt2")


def test_programs_with_any_value_changed(members: Members, tmp_path: Path) -> None:
    """Whatever stands in the JSON, the answer is a module or an error of ours."""
    choices = random.Random(1)
    strange = [None, True, -1, 2**70, 1.5, "x", "", [], {}, [[]], {"as_tensor": {"name": "x"}}, {"as_int": -5}]
    for _ in range(300):
        name = choices.choice(["models/model.json", "data/weights/model_weights_config.json"])
        content = json.loads(members[name])
        place: Any = content.get("graph_module", content)
        while True:
            key = choices.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or not place[key] or choices.random() < 0.1:
                break
            place = place[key]
        place[key] = choices.choice(strange)
        path = written(tmp_path / "net.pt2", members | {name: json.dumps(content).encode()})
        with suppress(UnsupportedModel):
            read_exported_program(path)
