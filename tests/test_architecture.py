"""The architecture: which packages may import which, without circles; and rules that hold for every file."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dpfbo", "runners", "analysis")

# Rooms from the lowest: a room may import those of earlier steps, and none beside it.
STEPS = {
    "dpfbo": (
        "checks formats clock extras deprecation", "lazy extensions", "rng space", "gp privacy", "records",
        "tables", "round_log", "run_result", "run_summary outsourced", "problems", "federated",
        "checkpoint", "study", "protocol", "secure", "audit", "integrations",
    ),
    "runners": (
        "private_apis dpfbo_command", "record compose", "arguments executor completion",
        "identity wandb", "user_errors recorded_run fetch best study", "replay deploy", "run",
        "sweep audit bench",
        "privacy theory status headroom board",
    ),
    "analysis": (
        "labels", "load", "arguments evidence rounds", "tables claims", "drawing",
        "pictures", "figures agents", "html", "report",
    ),
}  # fmt: skip
FOREIGN = {
    "dpfbo": {"ray", "wandb", "hydra", "omegaconf", "rich", "runners", "analysis"},
    "runners": {"analysis"},
    "analysis": {"dpfbo", "runners", "hydra", "wandb", "ray", "torch"},
}
FORMATS = "dpfbo.formats"  # the room of dpfbo that analysis may import; it knows no other
LIGHT = ("dpfbo.extras", "dpfbo.lazy")  # modules of the standard library's alone
MOST_FILES = {**dict.fromkeys(PACKAGES, 15), "tests": 20}  # in one folder, without __init__.py
HYDRA_KEY = re.compile(r"\b(privacy|algorithm|problem|executor|tracker|transform|sweep)\.[a-z_]+")


def files(package):
    return sorted((ROOT / package).rglob("*.py"))


def parts_of(path):
    """`("dpfbo", "gp", "domain")`; of a package's own file, `("dpfbo", "gp", "__init__")`."""
    return path.relative_to(ROOT).with_suffix("").parts


@cache
def parsed(path):
    return ast.parse(path.read_text())


def imports(path):
    """The dotted names that a file imports, also inside of functions; `from a import b` gives `a.b`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imported_modules(package):
    """By module, as parts, the modules of the same package that it imports."""
    modules = {parts_of(path): path for path in files(package)}

    def module_of(name):
        parts = tuple(name.split("."))
        known = ((*parts[:k], *end) for k in (len(parts), len(parts) - 1) for end in ((), ("__init__",)))
        return next((module for module in known if module in modules), None)

    found = {module: {module_of(name) for name in imports(path)} for module, path in modules.items()}
    return {module: others - {module, None} for module, others in found.items()}


def folders(package):
    return sorted({path.parent for path in files(package)})


def check_none(found):
    """Fail with all that was found, a line each."""
    if lines := list(map(str, found)):
        pytest.fail("\n".join([f"{len(lines)} found:", *lines]), pytrace=False)


@pytest.mark.parametrize("folder", [f for p in PACKAGES for f in folders(p)], ids=lambda f: ".".join(parts_of(f)))
def test_nothing_in_a_folder_imports_in_a_circle(folder):
    """Between its modules and its folders, each folder taken whole."""
    above = parts_of(folder)
    n, graph = len(above), {}
    for module, others in imported_modules(above[0]).items():
        if module[:n] == above:
            graph.setdefault(module[n], set()).update({o[n] for o in others if o[:n] == above} - {module[n]})
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"{'.'.join(above)}: {' -> '.join(error.args[1][::-1])}")


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_lead_downward(package):
    step = {room: k for k, rooms in enumerate(STEPS[package]) for room in rooms.split()}
    modules = imported_modules(package)
    assert step.keys() == {module[1] for module in modules} - {"__init__"}, "every room has its step"
    upward = [
        f"{'.'.join(module)} imports {'.'.join(other)}"
        for module, others in modules.items()
        for other in others
        if module[1] not in ("__init__", other[1]) and step.get(other[1], len(step)) >= step[module[1]]
    ]
    check_none(upward)


@pytest.mark.parametrize("package", PACKAGES)
def test_layers(package):
    """Analysis reads files, runners compose and record, the library knows neither."""
    foreign = FOREIGN[package]
    names = ((p, n) for p in files(package) for n in imports(p) if not n.startswith((f"{FORMATS}.", *LIGHT)))
    check_none(f"{p}: {n}" for p, n in names if n.split(".")[0] in foreign)


def test_formats_know_nothing_of_the_rest():
    names = ((p, n) for p in files("dpfbo/formats") for n in imports(p) if n.startswith("dpfbo"))
    check_none(f"{p}: {n}" for p, n in names if not n.startswith(f"{FORMATS}."))


def test_analysis_and_formats_load_neither_torch_nor_the_library():
    """Importing every module of both loads no other room of the library, and none of its heavy dependencies."""
    paths = [*files("dpfbo/formats"), *files("analysis")]
    modules = [".".join(parts_of(path)).removesuffix(".__init__") for path in paths]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    heavy = {"torch", "gpytorch", "linear_operator", "dp_accounting", "sklearn"}
    check_none(name for name in loaded if name.split(".")[0] in heavy | {"runners"})
    allowed = (f"{FORMATS}.", *(f"{module}." for module in LIGHT))
    check_none(n for n in loaded if n.startswith("dpfbo.") and not f"{n}.".startswith(allowed))


def test_no_test_module_is_imported():
    names = ((path, name) for path in files("tests") for name in imports(path))
    check_none(f"{p}: {n}" for p, n in names if n.startswith("tests.") and ".test_" in n)


@pytest.mark.parametrize("path", files("dpfbo"), ids=lambda p: ".".join(parts_of(p)))
def test_loading_neither_prints_nor_knows_keys_of_the_configuration(path):
    nodes = list(ast.walk(parsed(path)))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    assert "print" not in {ast.unparse(call) for call in calls}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    check_none(node.value for node in texts if id(node) not in docstrings and HYDRA_KEY.search(node.value))


@pytest.mark.parametrize("package", ["dpfbo", "runners"])
def test_no_global_seeding_and_no_inverse(package):
    forbidden = {"torch.manual_seed", "np.random.seed", "torch.linalg.inv", "np.linalg.inv", "random.seed"}
    calls = ((p, n) for p in files(package) for n in ast.walk(parsed(p)) if isinstance(n, ast.Call))
    check_none(f"{path}: {ast.unparse(call)}" for path, call in calls if ast.unparse(call.func) in forbidden)


@pytest.mark.parametrize("package", MOST_FILES)
def test_no_folder_is_too_full(package):
    sizes = Counter(path.parent for path in files(package) if path.name != "__init__.py")
    check_none(f"{folder}: {n} files" for folder, n in sizes.items() if n > MOST_FILES[package])


def test_no_two_classes_share_a_name():
    places = {}
    for path in (p for package in PACKAGES for p in files(package)):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    check_none(f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1)
