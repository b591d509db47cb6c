"""The programs in README and docs run as they stand."""

import re
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# the README's sections for people who extend dpfbo show parts of files, which tests of their own cover
WHOLE = {"README.md": 1, "docs/guides/python.md": 3}


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", WHOLE)
def test_the_programs_of_a_page_run(page, capsys):
    matplotlib.use("agg")
    names = {"__name__": "page"}
    for block in blocks(page)[: WHOLE[page]]:
        exec(compile(block, page, "exec"), names)
    result, text = names["result"], capsys.readouterr().out
    if page == "README.md":
        assert 0.9 < result.curve[-1] <= 1
        assert "epsilon 1.00 at delta 0.001, relation zero-out, by pld" in text
        assert len(text.splitlines()) == 9
        for best in result.best():
            assert set(best.configuration) == {"rate", "depth", "kernel"} and best.value > 0.85
    else:
        assert len(result.ledger.charges) == 5 and result.epsilon <= 4
        assert [agent.round for agent in names["agents"]] == [3, 3]
        assert names["server"].finished and names["server"].epsilon <= 1
        assert names["ax"].get_ylabel()


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_links_to_files_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), link
