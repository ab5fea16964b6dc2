"""What a device says of its installation while a deploy changes it."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from edgepipe.devices.installation import facts, folder_bytes, incoming_folder


def test_bytes_of_all_files_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "bundle/target/onnx").mkdir(parents=True)
    (tmp_path / "bundle/edgepipe.json").write_bytes(bytes(7))
    (tmp_path / "bundle/target/onnx/model.onnx").write_bytes(bytes(1000))
    (tmp_path / "bundle/target/onnx/link").symlink_to("nowhere")
    assert folder_bytes(tmp_path / "bundle") == 1007 + len("nowhere")
    assert folder_bytes(tmp_path / "none") == 0


def test_facts_are_told_while_an_arriving_bundle_comes_and_goes(tmp_path: Path) -> None:
    """Files and folders vanish between being listed and being looked at, as when a receiver puts a bundle in place."""
    incoming = Path(incoming_folder(str(tmp_path), "net"))
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            for index in range(8):
                folder = incoming / f"part{index}/target/onnx"
                folder.mkdir(parents=True)
                (folder / "model.onnx").write_bytes(bytes(10))
            shutil.rmtree(incoming)

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        told = [facts(tmp_path, "net")["incoming_bytes"] for _ in range(300)]
    finally:
        ended.set()
        churner.join()
    assert max(told) > 0
    assert set(told) <= set(range(0, 81, 10))
