"""The layers: analysis reads files, runners compose and record, the library knows neither."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "dpfbo").rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: str(p.relative_to(ROOT)))
def test_library_knows_no_runner(path):
    assert not {"ray", "wandb", "hydra", "omegaconf", "rich", "runners", "analysis"} & set(imports(path))
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]


@pytest.mark.parametrize("path", sorted((ROOT / "analysis").rglob("*.py")), ids=lambda p: p.name)
def test_analysis_reads_files_only(path):
    assert not {"dpfbo", "runners", "hydra", "wandb", "ray", "torch"} & set(imports(path))


@pytest.mark.parametrize("path", sorted((ROOT / "runners").rglob("*.py")), ids=lambda p: p.name)
def test_runners_do_not_reach_up(path):
    assert "analysis" not in set(imports(path))


@pytest.mark.parametrize("path", [*LIBRARY, *sorted((ROOT / "runners").rglob("*.py"))], ids=lambda p: p.name)
def test_no_global_seeding_and_no_inverse(path):
    names = {ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)}
    assert not {"torch.manual_seed", "np.random.seed", "torch.linalg.inv", "np.linalg.inv", "random.seed"} & names
