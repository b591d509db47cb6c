"""One module touches undocumented parts of Hydra, Ray and W&B, and fits the pinned versions."""

import ast
import inspect
import re
from pathlib import Path

from runners.private_apis import CHECKED, let_ray_choose_its_ports, parse_command_line

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hydra", "ray", "wandb")


def imported(path: Path) -> set[str]:
    """The dotted names of a module's imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def private(name: str) -> bool:
    library, *parts = name.split(".")
    return library in LIBRARIES and (any(part.startswith("_") for part in parts) or "overrides_parser" in parts)


def test_no_other_module_imports_private_parts():
    found = {path for path in (ROOT / "runners").rglob("*.py") if any(map(private, imported(path)))}
    assert found == {ROOT / "runners" / "private_apis.py"}


def test_the_pinned_versions_are_the_checked_ones():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {name: pinned[name] for name in CHECKED} == CHECKED
    text = (ROOT / "runners" / "private_apis.py").read_text()
    assert set(re.findall(r"\b(hydra-core|ray|wandb) (\d[\d.]*\d)\.", text)) == set(CHECKED.items())


def test_the_command_line_is_parsed_as_hydra_does():
    parsed, unknown = parse_command_line(["rounds=3", "-m", "--cfg", "job", "-p", "privacy", "seed=0,1", "--odd"])
    assert (parsed.cfg, parsed.package, unknown[0]) == ("job", "privacy", "--odd")
    assert (parsed.overrides, parsed.multirun, parsed.help) == (["rounds=3", "seed=0,1"], True, False)


def test_a_new_ray_takes_a_free_port_for_its_dashboard_agent():
    from ray._private.parameter import RayParams

    let_ray_choose_its_ports()
    assert inspect.signature(RayParams).parameters["dashboard_agent_listen_port"].default == 0
