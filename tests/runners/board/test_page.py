"""The page in a headless Chromium: it draws without an error, and changes while it is open."""

import re
import shutil
import subprocess
import threading

import pytest

from runners.board import command, page
from runners.board.board_data import BoardData
from runners.board.server import BoardServer
from tests.helpers.board_folders import change, finish, plan, write

pytest.importorskip("plotly", reason="the board needs plotly")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="neither chromium nor chrome is on PATH")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--enable-logging=stderr", "--dump-dom", "--window-size=1200,300",
)  # fmt: skip
HOSTILE = "</script><img src=x onerror=alert(1)> & <b>bold</b>"


def opened(url, folder, milliseconds):
    """(DOM, messages of the console) of a page after so much of its own time."""
    options = [*OPTIONS, f"--virtual-time-budget={milliseconds}", f"--user-data-dir={folder}"]
    done = subprocess.run([BROWSER, *options, url], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def served(data, folder, milliseconds):
    """`opened` for the page of a server."""
    server = BoardServer(data, "127.0.0.1", 0, 0.2)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        return opened(server.url, folder / "browser", milliseconds)
    finally:
        server.shutdown()
        server.server_close()


def figures(dom):
    """The number of lines with or without markers in each chart that is shown, by its caption."""
    found = {}
    for attributes, text in re.findall(r"<figure([^>]*)>(.*?)</figure>", dom, re.DOTALL):
        if "hidden" not in attributes:
            caption = re.search(r"<figcaption>(.*?)</figcaption>", text)[1]
            found[caption] = len(re.findall(r'<g class="trace scatter', text))
    return found


def test_draws_everything_from_a_file(tmp_path, monkeypatch):
    script = page.board_script()
    monkeypatch.setattr(page, "board_script", lambda: script + 'document.querySelector("summary").click();')
    plan(tmp_path, {"aaa": HOSTILE, "bbb": "alone", "ccc": "nothing shared"}, [0, 1])
    for seed in (0, 1):
        finish(tmp_path, "aaa", seed, [0.8, 0.4, 0.2 + seed / 10])
        write(tmp_path, "ccc", seed, [0.9, 0.8, 0.7 + seed / 10])
    change(finish(tmp_path, "bbb", 0, [0.5, 0.5, 0.1]), final={"mean": 0.1, "quantiles": {"5": 0.0625, "95": 0.75}})
    file = tmp_path / "page.html"
    assert command.main([str(tmp_path / "mine"), "--file", str(file)]) == 0
    dom, messages = opened(file.as_uri(), tmp_path / "browser", 3000)
    assert messages == []
    assert figures(dom) == {
        "simple regret by round": 5,  # three lines, and bands of the two with more than one seed
        "simple regret by epsilon spent": 3,
        "frontier": 3,
        "epsilon spent by round": 2,
    }
    assert "<img" not in dom
    assert "&lt;/script&gt;&lt;img src=x" in dom
    assert "5 of 6 done, 1 waiting" in dom
    assert "agents: 5% 0.0625, 95% 0.75" in dom and "quantiles over the agents of a run" in dom
    assert "at delta 0.01, relation zero-out, user level" in dom
    assert len(re.findall(r'<tr><th scope="row"><label>', dom)) == 3
    assert re.search(r"<td>0.013</td><td>rbf</td>", dom), "best configurations"


def test_a_folder_that_is_removed_leaves_no_curves(tmp_path):
    write(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])

    class Vanishing(BoardData):
        """The content of a folder that is removed after the page has asked twice."""

        asked = 0

        def content(self, *arguments):
            self.asked += 1
            if self.asked == 3:
                shutil.rmtree(tmp_path / "mine")
            return super().content(*arguments)

    dom, messages = served(Vanishing([tmp_path / "mine"]), tmp_path, 2000)
    assert messages == []
    assert "this folder does not exist" in dom
    assert re.search(r'<div data-panel="[^"]*" hidden=""', dom)


# a reader who hides a setting, zooms, and scrolls after the first content; and what is left of it in the end
READER = """
setTimeout(() => {
  document.querySelector("tbody input").click();
  Plotly.relayout(document.querySelector(".plot"), {"xaxis.range": [0.25, 0.75]});
  scrollTo(0, 40);
}, 900);
setInterval(() => {
  document.body.dataset.range = document.querySelector(".plot")?.layout?.xaxis.range;
  document.body.dataset.scroll = scrollY;
}, 100);
"""


def test_a_new_run_appears_in_an_open_page_and_the_readers_choices_stay(tmp_path, monkeypatch):
    plan(tmp_path, {"aaa": "first", "bbb": "second"}, [0])
    write(tmp_path, "aaa", 0, [0.8, 0.4, 0.2])
    script = page.board_script()
    monkeypatch.setattr(page, "board_script", lambda: script + READER)

    class Growing(BoardData):
        """The content, with one more run folder after the page has asked so often that the reader has acted."""

        asked = 0

        def content(self, *arguments):
            self.asked += 1
            if self.asked == 12:
                write(tmp_path, "bbb", 0, [0.7, 0.3, 0.1])
                change(write(tmp_path, "ccc", 0, [0.7, 0.3, 0.1]), label="the newer one")
            return super().content(*arguments)

    data = Growing([tmp_path / "mine"])
    dom, messages = served(data, tmp_path, 6000)
    assert messages == []
    assert data.asked > 12
    assert "3 of 3 done" in dom
    assert "the newer one" in dom
    assert figures(dom) == {"simple regret by round": 2}, "bbb and ccc, not aaa, which the reader had hidden"
    assert 'data-range="0.25,0.75"' in dom
    assert 'data-scroll="40"' in dom
