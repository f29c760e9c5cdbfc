"""A report in a real browser: no error, every figure, sorting, nothing wider than a phone."""

import dataclasses
import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from test_report import COSTS, cell

from experiments.report import Comparison, write
from experiments.report.sight import Sight

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium"),
]

LONG = "a variant of a long name, model.attention.0.feature_map=elu"
# appended to a copy of the page: clicks, and writes what it saw into the document
COPY = (
    "<script>onload = () => "
    'document.body.append(frames[0].document.getElementById("probe"))</script>'
)
PROBE = """<script>
const rows = () => [...document.querySelector("table").tBodies[0].rows];
const names = () => rows().map(row => row.cells[0].innerText);
const button = document.querySelectorAll("th button")[%d], seen = {before: names()};
button.click(); seen.descending = names(); button.click(); seen.ascending = names();
const shown = x => { const b = x.getBoundingClientRect(); return b.width > 100 && b.height > 50; };
seen.figures = [...document.querySelectorAll("figure svg")].map(shown);
const group = document.createRange();
group.selectNodeContents(document.querySelector(".group th:nth-child(2)"));
seen.group = group.getBoundingClientRect().right;
const right = x => x.getBoundingClientRect().right;
const beyond = cell => { group.selectNodeContents(cell); return right(group) - right(cell); };
seen.beyond = Math.max(...rows().map(row => beyond(row.cells[0])));
seen.names = rows()[0].cells[0].getBoundingClientRect().width;
seen.values = Math.min(...[...document.querySelectorAll("dd")].map(x => x.offsetWidth));
seen.width = innerWidth; seen.page = document.documentElement.scrollWidth;
const out = document.createElement("pre"); out.id = "probe";
out.textContent = JSON.stringify(seen); document.body.append(out);
</script>"""


def browse(page, width, column=1):
    """(what the probe saw, console lines), at this many pixels: in a frame, for windows have a
    least width, and the probe is copied out of it, for a frame is not dumped."""
    inner = page.with_name(f"probed-{width}.html")
    inner.write_text(page.read_text().replace("</body>", PROBE % column + "</body>"))
    outer = page.with_name(f"frame-{width}.html")
    outer.write_text(f'<iframe src="{inner.name}" width="{width}" height="900"></iframe>{COPY}')
    target = inner if width > 600 else outer
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--allow-file-access-from-files", "--disable-web-security"]
    command += [
        f"--user-data-dir={page.parent / 'profile'}",
        f"--window-size={max(width, 600)},900",
    ]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{target}"], capture_output=True, text=True, timeout=300
    )
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])), console


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    accuracies = {"softmax": 0.9, "linear": 0.7, LONG: 0.8}
    cells = [cell(name, seed, x) for name, x in accuracies.items() for seed in (0, 1)]
    notes = {
        "matched": "params +0.4%, mlp_width 131",
        "searched": "learning_rate 0.003 of 3 trials",
    }
    cells = [dataclasses.replace(x, notes=notes) for x in cells]
    cells.append(cell("window", 0, error=f"ValueError: {'long ' * 60}{'word' * 60}"))
    times = {f"{x}_ms{y}": 12.3456 for x in ("step", "forward") for y in ("", "_spread")}
    costs = {
        name: COSTS | times | {"decode_state_bytes": 1000 + 9 * n}
        for n, name in enumerate(accuracies)
    }
    sight = Sight((np.eye(8), -np.eye(8)), np.tri(8), "best checkpoint, step 3")
    sights = dict.fromkeys(accuracies, sight)
    # of its name, which has all fields of a task, the values beside were a letter wide
    data = {f"RecallMixed {'lengths=(32, 64, 64), ' * 9}{'x' * 90}": "0123456789abcdef"}
    environment = {"hardware": {"processor": "x" * 90}, "data": data}
    found = Comparison(
        "t", "a", tuple(cells), costs, {"chance": 0.1}, environment, "c", "d", sights
    )
    return write(found, tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("width", [1280, 400])
def test_a_report_works_in_a_browser(page, width):
    seen, console = browse(page, width)
    assert console == []
    assert seen["width"] == width
    assert seen["page"] <= width
    assert seen["values"] > 0.5 * min(width, 768)
    assert seen["beyond"] <= 0  # one long word of a name lay over the numbers beside it
    assert len(seen["figures"]) == page.read_text().count("<figure") == 8
    assert all(seen["figures"])
    order = ["softmax", LONG, "linear"]
    assert [x for x in seen["descending"] if x != "window"] == order
    assert [x for x in seen["ascending"] if x != "window"] == order[::-1]
    assert seen["group"] < width  # on a phone it stood beyond the edge, amid its columns
    assert seen["descending"][-1] == seen["ascending"][-1] == "window"  # it has no accuracy


def test_long_names_leave_room_for_the_numbers(tmp_path):
    """Their column stays in place, and was as wide as the window: no scrolling showed a number."""
    cells = tuple(cell(f"{LONG}, {LONG}, {LONG} {n}", 0) for n in range(2))
    found = Comparison("t", "a", cells, {}, {}, {}, "c", "d")
    seen, _ = browse(write(found, tmp_path), 1280)
    assert 300 < seen["names"] < 400


def test_paper_holds_whole_tables_on_few_pages(page):
    """Tables were cut at the right edge, and each cell's whole configuration took a page or two."""
    paper = page.with_name("paper.html")
    paper.write_text(page.read_text().replace("@media print", "@media all"))
    width = round((297 - 2 * 10) / 25.4 * 96)  # of A4 across, in pixels
    assert browse(paper, width)[0]["page"] <= width
    pdf = page.with_name("page.pdf")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={pdf}"]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"file://{page}"]
    subprocess.run(command, capture_output=True, timeout=300)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) <= 5


def test_an_error_on_the_console_is_noticed(page):
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text().replace("<script>", "<script>console.error('no');", 1))
    assert any("no" in line for line in browse(broken, 1280)[1])
