"""The modules whose mutants are tested, each with the quick tests that concern it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MutatedModule:
    """Files that are mutated, and the tests that must notice.

    files: of dpfbo, without `.py`. tests: of tests, files and folders. conftest: False if these need none of its
    fixtures: a mutant then does not import PyTorch, which takes longer than its tests.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    conftest: bool = True


_PRIVACY = "dpfbo/privacy/test_"
_MECHANISM = "dpfbo/federated/test_mechanism.py"
_ACCOUNTANTS = "dpfbo/privacy/accounting/test_"
MODULES = {
    "mechanism": MutatedModule(
        ("federated/mechanism",),
        (
            _MECHANISM,
            "dpfbo/federated/test_mechanism_limits.py",
            "dpfbo/federated/test_weighted_average.py",
            f"{_PRIVACY}noise.py",
            f"{_PRIVACY}entropy.py",
        ),
    ),
    "messages": MutatedModule(("federated/messages",), (_MECHANISM, "dpfbo/federated/test_messages.py")),
    "noise": MutatedModule(
        ("privacy/noise",), (f"{_PRIVACY}noise.py", _MECHANISM, "dpfbo/federated/test_weighted_average.py")
    ),
    "entropy": MutatedModule(("privacy/entropy",), (f"{_PRIVACY}entropy.py", f"{_PRIVACY}os_entropy.py", _MECHANISM)),
    "ledger": MutatedModule(
        (
            "privacy/ledger",
            "privacy/ledger_file",
            "privacy/ledger_lines",
            "privacy/charge",
            "privacy/coverage",
        ),
        tuple(
            f"{_PRIVACY}{name}.py"
            for name in ("charge", "ledger", "ledger_file", "ledger_lines", "ledger_format", "coverage", "budget")
        ),
    ),
    "ledger_repair": MutatedModule(
        ("privacy/ledger_repair",), (f"{_PRIVACY}ledger_repair.py", f"{_PRIVACY}coverage.py"), conftest=False
    ),
    "budget": MutatedModule(("privacy/budget",), (f"{_PRIVACY}budget.py", f"{_PRIVACY}plan.py")),
    "plan": MutatedModule(("privacy/plan",), (f"{_PRIVACY}plan.py", f"{_PRIVACY}budget.py")),
    "accounting": MutatedModule(
        ("privacy/accounting/__init__", "privacy/accounting/events", "formats/words"),
        (f"{_ACCOUNTANTS}events.py", "dpfbo/formats/test_words.py", "dpfbo/test_extensions.py"),
    ),
    "moments": MutatedModule(
        ("privacy/accounting/moments", "privacy/accounting/additive"), (f"{_ACCOUNTANTS}moments.py",), conftest=False
    ),
    "rdp": MutatedModule(("privacy/accounting/rdp",), (f"{_ACCOUNTANTS}rdp.py",), conftest=False),
    "pld": MutatedModule(("privacy/accounting/pld",), (f"{_ACCOUNTANTS}pld.py",), conftest=False),
    "gdp": MutatedModule(("privacy/accounting/gdp",), (f"{_ACCOUNTANTS}gdp.py",), conftest=False),
    "fixed_size": MutatedModule(("privacy/accounting/fixed_size",), (f"{_ACCOUNTANTS}fixed_size.py",), conftest=False),
    "analytic_gaussian": MutatedModule(
        ("privacy/accounting/analytic_gaussian",),
        (f"{_ACCOUNTANTS}events.py", "dpfbo/outsourced/test_transforms.py", f"{_PRIVACY}plan.py"),
    ),
    "calibrate": MutatedModule(("privacy/accounting/calibrate",), (f"{_ACCOUNTANTS}calibrate.py",), conftest=False),
}

# tests that start another interpreter, where no mutant is, or that take long
LEFT_OUT = (
    f"{_PRIVACY}os_entropy.py::test_nothing_of_the_noise_stays",
    f"{_PRIVACY}plan.py::test_accountants_are_imported_when_they_are_asked_for",
    f"{_PRIVACY}ledger_file.py::test_the_lock_ends_with_a_killed_process",
    f"{_PRIVACY}ledger_lines.py::test_ten_thousand_charges_are_linear",
)
