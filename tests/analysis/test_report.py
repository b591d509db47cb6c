"""The HTML report: one whole file, escaped, that names all missing parts."""

import base64
import io
import itertools
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from PIL import Image

from analysis import report
from analysis.claims import JudgedClaim
from analysis.html import privacy, sections
from analysis.load import LoadError, load, settings

HOSTILE = "<script>alert('x')</script>&\"it\""
T = 40
THEORY = {
    "columns": {"psi": "psi_t <sum of errors>"},
    "rounds": [{"round": t, "psi": None if t == 1 else t / 8} for t in range(1, T + 1)],
    "proposition_1": {"c2": 1.5, "words": "z is large enough with c2 = 1.5"},
    "note": "Upper bounds only.",
}


def write_run(results, experiment, setting, seed, algorithm="ts", q=0.25, private=False, commit="a" * 40):
    folder = results / experiment / setting / str(seed)
    folder.mkdir(parents=True)
    epsilon = {"moments": 9.908, "pld": 7.054} if private else {"moments": 0.0, "pld": 0.0}
    config = {
        "algorithm": {"name": algorithm, "private": private, "P": 2 if private else 1, "follow": "inverse_sqrt"},
        "privacy": {"z": 1.0, "q": q, "S": 11, "sampling": "poisson", "sensitivity": "paper", "charge": "nominal"},
        "problem": {"_target_": "x.Synthetic", "n_agents": 200, "function_seed": seed},
        "rounds": T, "seed": seed, "experiment_name": experiment, "data_dir": "/secret/place",
        "executor": {"name": "local", "device": "cpu"},
    }  # fmt: skip
    mean = [0.5 / (1 + t) + 0.1 * seed for t in range(T + 1)]
    summary = {
        "experiment": experiment, "setting": setting, "problem": "synthetic", "algorithm": algorithm, "seed": seed,
        "n_agents": 200, "rounds": T, "metric": "simple_regret", "lower_is_better": True, "private": private,
        "curve": {"round": list(range(T + 1)), "mean": mean, "se": [0.01] * (T + 1), "se_over": "agents"},
        "delta": 0.00294, "relation": "zero-out", "accountant": "pld", "rng": "seeded",
        "n_charges": T if private else 0, "epsilon": epsilon, "epsilon_covers": "the ledger's broadcasts",
        "commit": commit, "clip_fraction": 0.0, "seconds": {"objective": 0.0, "total": 1.0},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    spent = [7.054 * (t + 1) / T for t in range(T)] if private else []
    pd.DataFrame({"round": range(len(spent)), "epsilon": spent}).to_parquet(folder / "server.parquet")
    return folder


def fabricated(runs):
    """Claims about fig2c, one for each verdict, and one about an experiment without runs."""
    kinds = [("holds", 4.7), ("contrary", -2.5), ("not decided", None), ("not run", None)]
    found = [
        JudgedClaim(
            str(i), "Fig. 2c", "fig2c", f"{HOSTILE}, claim {i}", "paper", "lower", "0.1 ± 0.2", se, "2 functions", v
        )
        for i, (v, se) in enumerate(kinds)
    ]
    found.append(
        JudgedClaim("9", "Fig. 5", "fig5", "Weights matter", "reimplementation", "lower", "none", None, "–", "not run")
    )
    return [claim for claim in found if claim.experiment in runs]


class Page(HTMLParser):
    """The parsed page: tags with their attributes, the text, the cells of each row."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.rows, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def row(self, *cells):
        """The rows that begin with these cells."""
        plain = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        return [row for row in plain if tuple(row[: len(cells)]) == cells]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """An experiment of the paper with a private setting and theory, one with a hostile label, and a broken one."""
    folder = tmp_path_factory.mktemp("results")
    for seed in (0, 1):
        write_run(folder, "fig2c", "aaa", seed)
        private = write_run(folder, "fig2c", "bbb", seed, "dp_fts_de", private=True)
        (private / "theory.json").write_text(json.dumps(THEORY))
    write_run(folder, "fig10x", "ccc", 3, HOSTILE, commit="b" * 40 + "+")
    (write_run(folder, "fig4", "ddd", 0) / "summary.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def made(results, tmp_path_factory):
    """The report of all experiments, and the exit code."""
    file = tmp_path_factory.mktemp("out") / "new" / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            report, "claims", lambda names=None: [SimpleNamespace(experiment=name) for name in ("fig2c", "fig5")]
        )
        patch.setattr(report, "judge", fabricated)
        patch.setattr(sections.pictures, "judge", fabricated)
        code = report.main([f"results_dir={results}", "--out", str(file)])
    return file.read_text(encoding="utf-8"), code


@pytest.fixture
def page(made):
    return Page(made[0])


@pytest.fixture
def undrawn(monkeypatch):
    """Skip drawing, which takes a second; most tests do not look at pictures."""
    monkeypatch.setattr(sections.pictures, "draw_experiment", lambda experiment, runs: [])


def test_one_file_that_loads_nothing(page):
    assert not page.open
    assert not page.all("script")
    assert not page.all("link")
    assert not [a for _, a in page.tags for name in a if name.startswith("on")]
    assert all(a["src"].startswith("data:image/png;base64,") for a in page.all("img"))
    assert all(a["href"].startswith("#") for a in page.all("a"))
    assert not re.search(r"url\(|@import|https?:", " ".join(page.text))


def test_pictures_are_inside_with_words(page):
    images = page.all("img")
    assert [a["alt"].split(":")[0] for a in images[1:]] == ["fig2c, regret by iteration", "fig2c, regret by epsilon"]
    for attrs in images:
        data = base64.b64decode(attrs["src"].partition(",")[2], validate=True)
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert (str(image.width), str(image.height)) == (attrs["width"], attrs["height"])
            assert image.width > 1000
    assert "TS; DP-FTS-DE, P = 2" in images[1]["alt"]


def test_headings_anchors_and_rows(page):
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    assert {a["href"][1:] for a in page.all("a")} <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(later <= level + 1 for level, later in itertools.pairwise(levels))
    assert ids.index("experiment-fig4") < ids.index("experiment-fig10x") < ids.index("experiment-fig2c")


def test_what_comes_from_files_is_escaped(made, page):
    assert HOSTILE not in made[0]
    assert page.row(HOSTILE)  # in the table of results, as text
    assert any(HOSTILE in a["alt"] for a in page.all("img"))
    assert "/secret/place" not in made[0]


def test_results_beside_epsilon(page):
    assert page.row("TS", "0.1333 ± 0.0500", "0.0738 ± 0.0500", "0.0622 ± 0.0500", *["0 (nothing shared)"] * 2)
    assert page.row("DP-FTS-DE, P = 2, z = 1", "0.1333 ± 0.0500", "0.0738 ± 0.0500", "0.0622 ± 0.0500", "9.91", "7.05")
    assert "2 seeds, each with its own function; 4 runs." in page.words


def test_privacy_beside_what_is_published(page):
    assert page.row("setting", "ε moments", "ε moments, published", "ε pld", "q", "z")
    assert page.row("DP-FTS-DE, P = 2, z = 1", "9.91", "9.91", "7.05", "0.25", "1")
    assert "S = 11, N = 200, T = 40, releases 40, δ = 0.00294, relation zero-out, rng seeded" in page.words


def test_a_large_delta_is_in_words(tmp_path):
    write_run(tmp_path, "one", "aaa", 0, "dp_fts_de", private=True)
    file = next(tmp_path.rglob("summary.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"delta": 0.139}))
    (group,) = settings(load(tmp_path, "one"))
    assert privacy.row(group)["δ"] == "0.139 (large: it allows a chance of 14% that ε protects nobody; 0.001 is usual)"


def test_theory_at_a_few_rounds(page):
    assert [row[:2] for row in page.rows if row[0] in ("1", "11", "21", "30", "40")][:5] == [
        ["1", "–"], ["11", "1.375"], ["21", "2.625"], ["30", "3.75"], ["40", "5"],
    ]  # fmt: skip
    for words in ("Upper bounds only.", "psi_t <sum of errors>", "Proposition 1: z is large enough with c2 = 1.5"):
        assert words in page.words


def test_commits(page):
    assert f"The runs were made with 2 versions of the code: commit {'a' * 12} (4 runs), " in page.words
    assert f"commit {'b' * 12} with changes that were not committed (1 run)." in page.words


def test_verdicts_in_words(page):
    assert "Published effects ✓ 1 holds ✗ 1 contrary ? 1 not decided" in page.words
    claims = [[" ".join(cell.split()) for cell in row] for row in page.rows if len(row) > 1 and "claim " in row[1]]
    assert [row[1] for row in claims] == [f"{HOSTILE}, claim {i}" for i in range(3)]
    assert [row[0] for row in claims] == ["✓ holds", "✗ contrary", "? not decided"]
    assert [row[4] for row in claims] == ["+4.7 2 functions", "−2.5 2 functions", "– 2 functions"]


def test_the_report_opens_with_results_and_ends_with_what_was_not_run(page):
    ids = [a["id"] for _, a in page.tags if "id" in a]
    parts = [name for name in ids if not name.startswith(("experiment-", "claims-"))]
    assert parts == ["experiments", "verdicts", "privacy", "theory", "not-run", "environment"]
    own = [name for name in ids if name.startswith("experiment-")]
    assert own == ["experiment-fig4", "experiment-fig10x", "experiment-fig2c"]  # without claims, then with
    words = page.words
    before, _, after = words.partition("○ 2 not run claims about 2 experiments, for which there is no finished run")
    assert "not run" not in before.partition("Contents")[2].replace("Not run", "")
    assert f"Fig. 2c (fig2c) {HOSTILE}, claim 3" in after and "Fig. 5 (fig5) Weights matter (reimplementation)" in after
    details = [k for k, (tag, _) in enumerate(page.tags) if tag == "details"]
    assert all("open" not in page.tags[k][1] for k in details)


def test_broken_run_is_said_in_the_report_and_on_stderr(results, made, page, undrawn, tmp_path, capsys):
    assert made[1] == 1
    said = "fig4 is left out, with the claims about it: "
    assert page.words.count(said) == 2  # above, and in its section
    assert report.main(["fig4", f"results_dir={results}", "--out", str(tmp_path / "r.html")]) == 1
    streams = capsys.readouterr()
    assert f"error: {said}" in streams.err
    assert streams.out == f"{tmp_path / 'r.html'}\n"


def test_only_what_is_named(results, undrawn, tmp_path):
    assert report.main(["fig10x", f"results_dir={results}", "--out", str(tmp_path / "r.html")]) == 0
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "Verdicts" not in page.words and "Theory" not in page.words  # no section is empty
    assert f"All runs were made with git commit {'b' * 12} , with changes that were not committed." in page.words
    assert not [a for _, a in page.tags if a.get("id") == "experiment-fig2c"]


def test_what_cannot_be_drawn_is_said(results, monkeypatch, tmp_path, capsys):
    def no_picture(experiment, runs):
        raise LoadError("no space")

    monkeypatch.setattr(sections.pictures, "draw_experiment", no_picture)
    assert report.main(["fig2c", f"results_dir={results}", "--out", str(tmp_path / "r.html")]) == 1
    page, err = Page((tmp_path / "r.html").read_text(encoding="utf-8")), capsys.readouterr().err
    assert "fig2c cannot be drawn: no space" in page.words
    assert "fig2c cannot be drawn: no space" in err
    assert page.row("TS", "0.1333 ± 0.0500")  # the rest is there


def test_whatever_drawing_trips_over_is_said(results, monkeypatch, tmp_path, capsys):
    def broken(experiment, runs):
        raise ValueError("unbalanced $")

    monkeypatch.setattr(sections.pictures, "draw_experiment", broken)
    assert report.main(["fig10x", f"results_dir={results}", "--out", str(tmp_path / "r.html")]) == 1
    assert "error: fig10x cannot be drawn: ValueError: unbalanced $" in capsys.readouterr().err


def test_runs_of_another_version_are_said(undrawn, tmp_path, capsys):
    folder = write_run(tmp_path, "x", "aaa", 0, "dp_fts", private=True)
    summary = json.loads((folder / "summary.json").read_text())
    del summary["relation"]
    (folder / "summary.json").write_text(json.dumps(summary))
    assert report.main([f"results_dir={tmp_path}", "--out", str(tmp_path / "r.html")]) == 1
    assert (
        f"x is left out, with the claims about it: {folder} was not written by this version (summary.json has no "
        in capsys.readouterr().err
    )


def test_theory_that_cannot_be_read_is_said(undrawn, tmp_path, capsys):
    folder = write_run(tmp_path, "x", "aaa", 0, "dp_fts", private=True)
    (folder / "theory.json").write_text("[]")
    assert report.main([f"results_dir={tmp_path}", "--out", str(tmp_path / "r.html")]) == 1
    assert f"the bounds of x are left out: {folder / 'theory.json'} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["results_dir={empty}"], "no finished run in {empty}"),
        (
            ["fig99", "results_dir={results}"],
            "no finished run of 'fig99' in {results} (there are results of fig10x, fig2c",
        ),
        (["results_dir={results}", "--out", "{empty}"], "--out must be a file, and {empty} is a folder"),
    ],
)
def test_nothing_to_write_is_one_sentence(results, tmp_path, monkeypatch, capsys, arguments, sentence):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(tmp_path)
    assert report.main([a.format(results=results, empty=empty) for a in arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {sentence.format(results=results, empty=empty)}")
    assert list(tmp_path.rglob("*")) == [empty]


def test_a_report_is_replaced_whole_or_kept(results, undrawn, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError("no space left")

    file = tmp_path / "r.html"
    file.write_text("old")
    monkeypatch.setattr("os.replace", full)
    assert report.main(["fig2c", f"results_dir={results}", "--out", str(file)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert file.read_text() == "old"


def test_experiments_as_in_the_paper(tmp_path):
    names = ["fig2a", "fig3_activity", "fig3_landmine", "fig10", "fig12b", "control", "cost", "frontier", "school"]
    for name in sorted(names):
        write_run(tmp_path, name, "a", 0)
    for name in ("other", "mine"):  # no published claim is about them, and the package does not ship them
        write_run(tmp_path, name, "a", 0)
    assert report.experiments(tmp_path, []) == ["mine", "other", *names]


def test_captions_and_claims_stand_below_the_pictures(made, page):
    """Captions are text outside of the pictures; verdicts stand once in an experiment."""
    captions = [text for text in page.text if text.strip().startswith("N\u00a0=")]
    assert len(captions) == 3
    assert not any("holds" in text for text in captions)
    assert page.words.count(f"{HOSTILE}, claim 0: holds (4.7 standard errors, 2 functions).") == 1
    heights = [int(a["height"]) / int(a["width"]) for a in page.all("img")]
    assert len(heights) == 3 and max(heights) < 0.75
