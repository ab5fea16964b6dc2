"""The page of a comparison in headless Chromium, at the widths of a phone and of a desk: all there, nothing cut off."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgepipe import measure
from edgepipe.pipeline.compare import compare
from edgepipe.pipeline.compare_page import comparison_page
from edgepipe.pipeline.measure_decoder import Plan
from edgepipe.pipeline.report import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = {"phone": 360, "desk": 1280}

# A page around the page, as scripts are forbidden in that itself: says what it looks like inside.
HARNESS = """<body><iframe src="{page}" style="width:{width}px;height:2000px;border:0"></iframe><pre id="said"></pre>
<script>addEventListener("load", () => {{
  const inside = document.querySelector("iframe").contentDocument, root = inside.documentElement;
  const cut = [...inside.querySelectorAll("svg text")].filter(text => {{
    const box = text.getBoundingClientRect(), around = text.ownerSVGElement.getBoundingClientRect();
    return box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1;
  }});
  const meet = (one, other) => one.left < other.right && other.left < one.right &&
    one.top < other.bottom && other.top < one.bottom;
  const covered = [...inside.querySelectorAll("svg")].flatMap(plot => {{
    const boxes = [...plot.querySelectorAll("text, .dot, .box")].map(mark => [mark, mark.getBoundingClientRect()]);
    return boxes.filter(([mark, box]) => mark.tagName == "text" &&
      boxes.some(([other, around]) => other != mark && meet(box, around))).map(([mark]) => mark.textContent);
  }});
  const table = inside.querySelector("section"), name = table.querySelector("tbody tr:not(.group) th");
  table.scrollLeft = 10000;
  const hidden = name.getBoundingClientRect().left - table.getBoundingClientRect().left;
  const narrow = [...inside.querySelectorAll(".settings td")].map(cell => cell.getBoundingClientRect().width);
  const small = [...inside.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().height);
  document.getElementById("said").textContent = JSON.stringify({{
    covered, hidden, narrowest: Math.min(...narrow),
    width: root.scrollWidth, text: inside.body.innerText, cut: cut.map(text => text.textContent),
    drawn: [...inside.querySelectorAll("svg text")].map(text => text.textContent), smallest: Math.min(...small),
    loaded: inside.defaultView.performance.getEntriesByType("resource").length,
    background: inside.defaultView.getComputedStyle(inside.body).backgroundColor,
  }});
}});</script></body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium: apt install chromium")
    return found


@pytest.fixture(scope="module")
def page(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two reports, one with names that are long and hold no place to break."""
    folder = tmp_path_factory.mktemp("page")
    report: Any = measure(tiny_bundle, plan=Plan(prompt_lengths=(4,), new_tokens=20, repeats=3, max_width=4))
    for moment in report["conditions"]["during"]:
        moment["temperature_c"] = 50.0
    report["prompts"][0]["measured"]["samples"][0]["round_ns"][3] *= 1000  # which is counted above the others
    for name, board in (("a", "Raspberry Pi 5"), ("b", "X" * 120)):
        (folder / name).mkdir()
        write_report({**report, "device": {**report["device"], "board": board}}, folder / name)
    (folder / "page.html").write_text(comparison_page(compare([folder / "a", folder / "b"])), encoding="utf-8")
    return folder / "page.html"


def seen(browser: str, page: Path, width: int, *flags: str) -> dict[str, Any]:
    """What the page looks like inside a window of ``width`` CSS pixels."""
    harness = page.with_name(f"around_{width}_{page.name}")
    harness.write_text(HARNESS.format(page=page.name, width=width), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=5000", *flags, "--dump-dom"]
    done = subprocess.run([*command, harness.as_uri()], capture_output=True, text=True, timeout=120)
    said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said is not None, done.stderr
    answer: dict[str, Any] = json.loads(html.unescape(said[1]))
    return answer


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_is_wider_than_the_window_and_all_is_there(browser: str, page: Path, width: int) -> None:
    found = seen(browser, page, width)
    assert found["width"] <= width
    assert found["cut"] == []
    assert found["covered"] == [], "no text stands on another, or on what is drawn"
    assert found["loaded"] == 0
    assert found["smallest"] >= 11, "letters of less than 11 pixels are not read on a phone"
    for text in ("Comparison of 2 reports", "Raspberry Pi 5", "TTFT, ms", "KV cache, MiB", "What differs", "X" * 120):
        assert text in found["text"]
    for text in ("A", "B", "tokens/s", "°C", "t(S) / t(1)", "seconds since the measurement began", "peak RSS"):
        assert text in found["drawn"]


def test_light_and_dark(browser: str, page: Path) -> None:
    light, dark = (
        seen(browser, page, WIDTHS["phone"], f"--blink-settings=preferredColorScheme={scheme}")["background"]
        for scheme in (1, 0)
    )
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (light, dark)]
    assert brightness[0] > 200
    assert brightness[1] < 50


def test_seven_reports_on_a_phone(browser: str, page: Path) -> None:
    many = page.with_name("many.html")
    many.write_text(comparison_page(compare([page.parent / name for name in "abababa"])), encoding="utf-8")
    found = seen(browser, many, WIDTHS["phone"])
    assert found["width"] <= WIDTHS["phone"], "wide tables scroll by themselves"
    assert found["cut"] == []
    assert found["covered"] == []
    assert 0 <= found["hidden"] < 20, "the names of rows stay when a table is scrolled"
    assert found["narrowest"] > 60, "settings are not broken after every letter"
    assert "G: " in found["text"]
