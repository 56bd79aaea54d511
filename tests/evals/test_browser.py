"""The HTML report in a real browser: headless Chromium, which `.ci/run` installs.

The browser opens the report with a script appended, which clicks as a reader would, measures what
is drawn, and leaves what it saw in the page for `--dump-dom` to print.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unabridged.cli import main

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")

LOOK = """\
<script>
const seen = element => element.checkVisibility();
const area = element => { const box = element.getBoundingClientRect(); return box.width * box.height; };
const inks = svg => [...svg.querySelectorAll("rect, circle, path")].filter(
  one => one.getBBox().width > 0 && !["", "none", "rgba(0, 0, 0, 0)"].includes(getComputedStyle(one).fill));
const before = [...document.querySelectorAll("details pre")].map(seen);
const plots = [...document.querySelectorAll("svg")].filter(one => !one.closest("details"));
const summaries = [...document.querySelectorAll("summary")];
// The inner ones are unfolded from the start.
const folded = summaries.filter(one => !one.parentElement.open);
folded.forEach(one => one.click());
const found = {
  title: document.title,
  plots: plots.map(one => ({ area: area(one), drawn: inks(one).length })),
  timelines: [...document.querySelectorAll("details svg")].map(one => inks(one).length),
  clicked: folded.length, open: summaries.map(one => one.parentElement.open),
  hidden: before, shown: [...document.querySelectorAll("details pre")].map(seen),
  wide: document.documentElement.scrollWidth - window.innerWidth,
  text: document.body.innerText,
  loads: performance.getEntriesByType("resource").map(one => one.name),
};
const left = document.createElement("pre");
left.id = "found"; left.textContent = JSON.stringify(found); document.body.append(left);
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    """A missing browser is a failure where everything must be checked, else a reason to skip."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        missing = "needs a browser: install the package chromium-headless-shell"
        if os.environ.get("UNABRIDGED_CHECK"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def look(browser: str, page: Path, home: Path) -> dict[str, Any]:
    """What the browser saw of a page."""
    copy = home / "looked.html"
    copy.write_bytes(page.read_bytes() + LOOK.encode())
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={home / 'profile'}", "--window-size=1000,800", "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    left = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert left is not None, done.stderr + done.stdout[-2000:]
    return json.loads(html.unescape(left[1]))


@pytest.mark.suites
def test_the_report_in_a_browser(
    browser: str, suite: Callable[..., Path], evals: Callable[..., int], tmp_path: Path
) -> None:
    folder, out = suite(), tmp_path / "out"
    assert evals("--suite", str(folder), "--agent", "scripted:oracle", "--limit", "1") == 0
    assert main(["evals", "report", str(out)]) == 0
    seen = look(browser, out / "report.html", tmp_path)
    assert seen["title"].startswith("Evals: scripted:oracle")
    # Both plots take room on the page and have something in them.
    assert len(seen["plots"]) == 2
    assert all(plot["area"] > 10_000 and plot["drawn"] for plot in seen["plots"])
    # The trajectory is folded, opens at a click, and shows the reasoning and the step timeline.
    assert seen["hidden"]
    assert not any(seen["hidden"])
    assert seen["clicked"] >= 1
    assert all(seen["open"])
    assert all(seen["shown"])
    assert seen["timelines"]
    assert all(seen["timelines"])
    assert "It costs 3 now." in seen["text"]
    # It fits the window and loads nothing.
    assert seen["wide"] <= 0
    assert seen["loads"] == []
