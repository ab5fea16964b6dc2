"""Whatever stands in edgepipe.json, opening a bundle answers with the bundle or with an error that names the key."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import BundleError
from edgepipe.pipeline.bundle import Bundle, checksums
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.manifest import GRAPHS, SCHEMA_VERSION, read_manifest
from edgepipe.runtimes.llm.spec import DecoderSpec

Keys = tuple[str, ...]
SPEC: Keys = ("components", "target", "spec")
VISION = {"kind": "vision", "plan": "a.txt", "formats": {}}
WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    0.5,
    math.nan,
    math.inf,
    "",
    "text",
    "\ud800",
    "a\nb",
    [],
    [[]],
    {},
    {"": 0},
]


@pytest.fixture
def bundle(tmp_path: Path, manifest: dict[str, Any]) -> Path:
    with write_bundle(tmp_path / "bundle") as draft:
        draft.manifest = copy.deepcopy(manifest)
        draft.manifest["components"]["target"]["spec"] |= {"bos_token_id": 1, "eos_token_ids": [2, 3]}
        (draft.folder / "a.txt").write_text("a")
    return tmp_path / "bundle"


def changed(manifest: dict[str, Any], keys: Keys, value: object) -> dict[str, Any]:
    """A copy in which the key has another value, or is left out (`...`)."""
    manifest = copy.deepcopy(manifest)
    table = manifest
    for key in keys[:-1]:
        table = table[key]
    if value is ...:
        del table[keys[-1]]
    else:
        table[keys[-1]] = value
    return manifest


def edit(bundle: Path, keys: Keys, value: object) -> None:
    write(bundle, json.dumps(changed(json.loads((bundle / "edgepipe.json").read_bytes()), keys, value)))


def write(bundle: Path, text: str) -> None:
    """Replace edgepipe.json and bring SHA256SUMS along, as somebody who means it would."""
    path = bundle / "edgepipe.json"
    path.write_text(text)
    sums = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
    own = f"{hashlib.sha256(path.read_bytes()).hexdigest()}  edgepipe.json\n"
    (bundle / "SHA256SUMS").write_text("".join(own if line.endswith("  edgepipe.json\n") else line for line in sums))


def keys_of(table: dict[str, Any], above: Keys = ()) -> Iterator[Keys]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, key))


def refusal_of(bundle: Path) -> str:
    with pytest.raises(BundleError) as refusal:
        Bundle.open(bundle)
    message = str(refusal.value)
    assert "edgepipe.json" in message
    assert message.isprintable()
    assert len(message) < 1000
    return message


def test_every_key_with_every_wrong_value(bundle: Path) -> None:
    """The one kind of error is BundleError; what is accepted all the same can be read as decoders and their files."""
    path = bundle / "edgepipe.json"
    whole = json.loads(path.read_bytes())
    refusals = []
    for keys in keys_of(whole):
        for value in [..., *WRONG]:
            path.write_text(json.dumps(changed(whole, keys, value)))
            try:
                manifest = read_manifest(bundle)
            except BundleError as error:
                refusals.append(str(error))
            else:
                checksums(manifest["files"], "0" * 64).encode()
                for component in manifest["components"].values():
                    assert DecoderSpec.from_json(component["spec"]).fault() is None
                    listed = [component["tokenizer"]]
                    listed += [
                        files[graph] for files in component["formats"].values() for graph in GRAPHS if graph in files
                    ]
                    assert set(listed) <= set(manifest["files"])
    assert all("edgepipe.json" in message and message.isprintable() for message in refusals)
    assert len(refusals) > 400


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("components",), [], "components is [], expected a table"),
        (("components",), ..., "components is missing, expected a table"),
        (("components", "target"), "model", "components.target is 'model', expected a table"),
        (("components", "speech"), {}, "components has 'speech'"),
        (("components", "vision"), {"kind": "decoder"}, "components.vision.kind is 'decoder'"),
        (("components", "vision"), VISION | {"plan": "b.txt"}, "components.vision.plan is 'b.txt'"),
        (("components", "vision"), VISION | {"formats": {"onnx": {"whole": 1}}}, "vision.formats.onnx.whole is 1"),
        (("components", "target", "kind"), "vision", "components.target.kind is 'vision'"),
        (("components", "target", "spec"), ..., "components.target.spec: it is None: expected a table"),
        ((*SPEC, "num_layers"), ..., "components.target.spec: num_layers is missing"),
        ((*SPEC, "num_layers"), 0, "num_layers is 0: expected a whole number from 1"),
        ((*SPEC, "num_heads"), 3, "num_heads is 3: expected a multiple of num_kv_heads, 2"),
        ((*SPEC, "head_dim"), 15, "head_dim is 15: expected an even number"),
        ((*SPEC, "context_length"), 10**9, "context_length is 1000000000: expected a whole number from 1 to 4194304"),
        ((*SPEC, "rms_norm_eps"), math.nan, "rms_norm_eps is nan: expected a number from 0 to 1"),
        ((*SPEC, "rope"), None, "rope is None: expected a table"),
        ((*SPEC, "rope", "theta"), 0, "rope.theta is 0: expected a number above 0"),
        ((*SPEC, "rope", "scaling"), "yarn", "rope.scaling is 'yarn': expected one of default, linear, llama3"),
        ((*SPEC, "rope", "beta"), 1, "unknown key rope.beta: the bundle is of a newer edgepipe"),
        ((*SPEC, "experts"), 8, "unknown key experts: the bundle is of a newer edgepipe"),
        ((*SPEC, "tied_embeddings"), 1, "tied_embeddings is 1: expected true or false"),
        ((*SPEC, "eos_token_ids"), 2, "eos_token_ids is 2: expected a list of token ids"),
        ((*SPEC, "eos_token_ids"), [2, 300], "eos_token_ids has 300: expected token ids from 0 to 299"),
        ((*SPEC, "bos_token_id"), -1, "bos_token_id has -1: expected token ids from 0 to 299"),
        (("components", "target", "formats", "onnx", "plain"), "b.txt", "formats.onnx.plain is 'b.txt'"),
        *(
            (
                ("components", "target", "formats", "onnx", "widths"),
                widths,
                "expected ascending whole numbers from 1 on",
            )
            for widths in ([], [5], [1, "5"], [1, 9, 5], [True], 1, None)
        ),
        (("components", "target", "formats", "onnx", "files"), "a.txt", "onnx.files is 'a.txt', expected a list"),
        (("components", "target", "formats", "onnx", "files"), ["b.txt"], "formats.onnx.files is 'b.txt'"),
        (("components", "target", "formats", "onnx", "files"), [["a.txt"]], "formats.onnx.files is ['a.txt']"),
        (("components", "target", "tokenizer"), ["a.txt"], "components.target.tokenizer is ['a.txt']"),
        (("files", "a.txt", "bytes"), -1, "files.a.txt.bytes is -1"),
        (("files", "a.txt", "sha256"), "b" * 63, "files.a.txt.sha256 is"),
        (("files", "\ud800"), {"sha256": "0" * 64, "bytes": 0}, "no file can have it"),
        (("files", "a\0b"), {"sha256": "0" * 64, "bytes": 0}, "no file can have it"),
        (("files", "a" * 300), {"sha256": "0" * 64, "bytes": 0}, "no file can have it"),
    ],
)
def test_the_key_and_what_was_expected_are_named(bundle: Path, keys: Keys, value: object, message: str) -> None:
    edit(bundle, keys, value)
    assert message in refusal_of(bundle)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "3", "{", "\0", "9" * 5000, '"\\ud800"'])
def test_what_is_no_manifest_at_all(bundle: Path, text: str) -> None:
    write(bundle, text)
    refusal_of(bundle)


def test_bundles_of_the_first_schema_are_read(bundle: Path) -> None:
    """What is new in the second is no more than keys that need not be there, and that readers of the first refuse."""
    assert (Bundle.open(bundle).manifest["schema_version"], SCHEMA_VERSION) == (2, 2)
    edit(bundle, ("schema_version",), 1)
    assert Bundle.open(bundle).manifest["schema_version"] == 1


@pytest.mark.parametrize("value", [["a note"], "text", 3, None, {"a": 1}])
def test_what_a_later_edgepipe_tells_of_a_format_is_left_alone(bundle: Path, value: object) -> None:
    edit(bundle, ("components", "target", "formats", "onnx", "unheard_of"), value)
    assert Bundle.open(bundle).manifest["components"]["target"]["formats"]["onnx"]["unheard_of"] == value


def test_numbers_may_be_written_as_whole_ones(bundle: Path) -> None:
    edit(bundle, (*SPEC, "rope", "theta"), 10000)
    assert Bundle.open(bundle).manifest["components"]["target"]["spec"]["rope"]["theta"] == 10000
