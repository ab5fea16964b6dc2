"""What two deploys at once do to each other on a device: nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from edgepipe.devices.local import Local
from edgepipe.pipeline.bundle import sha256
from edgepipe.pipeline.deploy_target import Target


class Held(Local):
    """Takes in all of a file, and gives it its name only once it is let go."""

    def __init__(self, arrived: Path, let_go: Path) -> None:
        super().__init__("local")
        self.arrived, self.let_go = arrived, let_go

    def command(self, script: str) -> list[str]:
        waiting = f"touch '{self.arrived}'; while ! [ -e '{self.let_go}' ]; do sleep 0.05; done; mv"
        return super().command(script.replace("mv", waiting))


def test_both_bring_the_wheel_and_old_ones_go(tmp_path: Path) -> None:
    wheel, root = tmp_path / "edgepipe-1-py3-none-any.whl", tmp_path / "it's a home"
    wheel.write_bytes(bytes(range(256)) * 1000)
    (root / "wheel/of before").mkdir(parents=True)
    (root / "wheel/of before/edgepipe-0-py3-none-any.whl").touch()
    found: dict[str, Any] = {"root": str(root), "python": "python3"}
    brought: list[Target] = []
    held = Held(tmp_path / "arrived", tmp_path / "let go")
    slow = threading.Thread(target=lambda: brought.append(Target.bring(held, wheel, found)), daemon=True)
    slow.start()
    deadline = time.monotonic() + 60
    while not held.arrived.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held.arrived.exists()
    brought.append(Target.bring(Local("local"), wheel, found))
    held.let_go.touch()
    slow.join(60)
    assert [sha256(Path(target.wheel)) for target in brought] == [sha256(wheel)] * 2
    assert [path for path in root.rglob("*") if path.is_file()] == [Path(brought[0].wheel)]
