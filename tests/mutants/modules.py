"""The modules whose mutants are tested, each with the quick tests that concern it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MutatedModule:
    """files: of dpfbo, without `.py`. tests: of tests, files and folders."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


_PRIVACY = "dpfbo/privacy/test_"
_MECHANISM = "dpfbo/federated/test_mechanism.py"
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
        ("privacy/ledger", "privacy/ledger_lines", "privacy/charge", "privacy/coverage", "privacy/event_prefix"),
        tuple(
            f"{_PRIVACY}{name}.py"
            for name in ("charge", "ledger", "ledger_lines", "ledger_format", "coverage", "budget")
        ),
    ),
    "budget": MutatedModule(("privacy/budget",), (f"{_PRIVACY}budget.py", f"{_PRIVACY}plan.py")),
    "plan": MutatedModule(("privacy/plan",), (f"{_PRIVACY}plan.py", f"{_PRIVACY}budget.py")),
    "accounting": MutatedModule(
        ("privacy/accounting/*",),
        tuple(f"{_PRIVACY}{name}.py" for name in ("accounting", "many_rounds", "gdp", "fixed_size", "calibrate")),
    ),
}
BY_DEFAULT = tuple(name for name in MODULES if name != "accounting")  # whose survivors nobody explained yet

# tests that start another interpreter, where no mutant is, or that take long
LEFT_OUT = (
    f"{_PRIVACY}os_entropy.py::test_nothing_of_the_noise_stays",
    f"{_PRIVACY}plan.py::test_accountants_are_imported_when_they_are_asked_for",
    f"{_PRIVACY}ledger_lines.py::test_ten_thousand_charges_are_linear",
    f"{_PRIVACY}many_rounds.py::TestAccountants::test_one_more_different_round_continues_the_curve",
)
