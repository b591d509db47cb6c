"""The modules whose mutants are tested, each with the quick tests that concern it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MutatedModule:
    """files: of dpfbo, without `.py`. tests: of tests, files and folders."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


_PRIVACY = "dpfbo/privacy/test_"
MODULES = {
    "mechanism": MutatedModule(
        ("federated/mechanism",), ("dpfbo/federated/test_mechanism.py", f"{_PRIVACY}noise.py", f"{_PRIVACY}entropy.py")
    ),
    "messages": MutatedModule(("federated/messages",), ("dpfbo/federated/test_mechanism.py",)),
    "noise": MutatedModule(("privacy/noise",), (f"{_PRIVACY}noise.py", "dpfbo/federated/test_mechanism.py")),
    "entropy": MutatedModule(
        ("privacy/entropy",), (f"{_PRIVACY}entropy.py", f"{_PRIVACY}os_entropy.py", "dpfbo/federated/test_mechanism.py")
    ),
    "ledger": MutatedModule(
        ("privacy/ledger", "privacy/ledger_lines", "privacy/charge", "privacy/event_prefix"),
        (f"{_PRIVACY}ledger.py", f"{_PRIVACY}ledger_lines.py", f"{_PRIVACY}budget.py"),
    ),
    "budget": MutatedModule(("privacy/budget",), (f"{_PRIVACY}budget.py", f"{_PRIVACY}plan.py")),
    "plan": MutatedModule(("privacy/plan",), (f"{_PRIVACY}plan.py", f"{_PRIVACY}budget.py")),
    "accounting": MutatedModule(
        ("privacy/accounting/*",),
        tuple(f"{_PRIVACY}{name}.py" for name in ("accounting", "many_rounds", "gdp", "fixed_size", "calibrate")),
    ),
}

# tests that start another interpreter, where no mutant is, or that take long
LEFT_OUT = (
    f"{_PRIVACY}os_entropy.py::test_nothing_of_the_noise_stays",
    f"{_PRIVACY}plan.py::test_accountants_are_imported_when_they_are_asked_for",
    f"{_PRIVACY}ledger_lines.py::test_ten_thousand_charges_are_linear",
    f"{_PRIVACY}many_rounds.py::TestAccountants::test_one_more_different_round_continues_the_curve",
)
