"""The mistakes of a first hour in Python: each gives one sentence that names the argument, the value and the rule."""

import pytest

import dpfbo
from dpfbo import Agent, Categorical, Float, Integer

SPACE = {"x": Float(0, 1)}
PATH = "dpfbo.Ledger with a path where releases are real"


def height(agent, x):
    return x["x"]


def optimized(f=height, space=SPACE, **changes):
    dpfbo.optimize(f, space, **{"n_agents": 3, "rounds": 1, "n_init": 2, **changes})


def studied(**changes):
    return dpfbo.create_study(SPACE, **{"n_agents": 3, "algorithm": "ts", "n_init": 1, **changes})


MISTAKES = {
    "a misspelt algorithm": (lambda: optimized(algorithm="dp_pirori"), "algorithm must be one of .*'dp_prior'"),
    "an algorithm in capitals": (lambda: optimized(algorithm="TS"), "algorithm must be one of 'ts', .* got 'TS'"),
    "a misspelt argument": (lambda: optimized(algoritm="ts"), "no argument 'algoritm' .did you mean 'algorithm'"),
    "British spelling": (lambda: optimized(maximise=True), "no argument 'maximise' .did you mean 'maximize'"),
    "Optuna's direction": (lambda: optimized(direction="minimize"), "'direction': give maximize=False if small"),
    "Optuna's n_trials": (lambda: optimized(n_trials=100), "'n_trials': give rounds, or max_evaluations"),
    "Ax's parameters": (lambda: optimized(parameters={}), "'parameters': give space"),
    "Opacus's target": (lambda: optimized(target_epsilon=1.0), "'target_epsilon': give epsilon"),
    "maximize as a word": (lambda: optimized(maximize="min"), "maximize must be one of True, False, got 'min'"),
    "bounds as a tuple": (lambda: optimized(space={"x": (0, 1)}), r"x must be a parameter, such as Float\(0, 1\)"),
    "a class as a parameter": (lambda: optimized(space={"x": Float}), "space.x must be a parameter, such as"),
    "an empty space": (lambda: optimized(space={}), "space must have a parameter that is not fixed"),
    "space and function swapped": (lambda: optimized(SPACE, height), "space comes after the function"),
    "a function of one argument": (lambda: optimized(lambda x: 0.0), "must take two arguments, .* got <lambda>.x"),
    "no function": (lambda: optimized(3), "function must be a function, .* got 3"),
    "bounds swapped": (lambda: Float(1, 0), "upper must be above lower=1, got 0"),
    "zero on a log scale": (lambda: Float(0, 1, log=True), "lower must be above 0 on a log scale, got 0"),
    "a fraction as a whole number": (lambda: Integer(1.5, 3), "lower must be a whole number, got 1.5"),
    "a single choice": (lambda: Categorical(["a"]), "choices must hold at least two values"),
    "a string of choices": (lambda: Categorical("abc"), "choices must be a list of values, got 'abc'"),
    "None as a value": (lambda: optimized(lambda agent, x: None), "must return a number, got None"),
    "NaN as a value": (lambda: optimized(lambda agent, x: float("nan")), "must return a finite number, got nan"),
    "two values": (lambda: optimized(lambda agent, x: (1, 2)), r"must return a number, got \(1, 2\)"),
    "a wrong name inside": (lambda: optimized(lambda agent, x: x["y"]), "at agent 0, x = .* raised KeyError: 'y'"),
    "epsilon of zero": (lambda: optimized(epsilon=0), "epsilon must be a finite number above 0, got 0"),
    "epsilon as text": (lambda: optimized(epsilon="1"), "epsilon must be a finite number above 0, got '1'"),
    "epsilon without privacy": (lambda: optimized(algorithm="ts", epsilon=1), "epsilon has no effect on algorithm=ts"),
    "delta without privacy": (lambda: optimized(algorithm="fts", delta=0.1), "delta has no effect on algorithm=fts"),
    "two budgets": (lambda: optimized(epsilon=1, noise_multiplier=1), "noise_multiplier must be left out where"),
    "delta of one": (lambda: optimized(delta=1), r"delta must lie in \(0, 1\), got 1"),
    "one agent that shares": (lambda: optimized(n_agents=1), "n_agents must be at least 2 for algorithm=dp_prior"),
    "half an agent": (lambda: optimized(n_agents=2.5), "n_agents must be an integer of at least 1, got 2.5"),
    "no rounds": (lambda: optimized(rounds=0), "rounds must be an integer of at least 1, got 0"),
    "rounds as text": (lambda: optimized(rounds="20"), "rounds must be an integer of at least 1, got '20'"),
    "one initial point": (lambda: optimized(n_init=1), "n_init must be at least 2 for algorithm=dp_prior"),
    "a negative seed": (lambda: optimized(seed=-1), "seed must be an integer of at least 0, got -1"),
    "real noise without a ledger": (lambda: optimized(rng="os"), f"ledger must be a {PATH}"),
    "a ledger's path": (lambda: optimized(ledger="l.jsonl"), "ledger must be a dpfbo.Ledger, got 'l.jsonl'"),
    "settings as a dict": (lambda: optimized(preset={"M": 3}), "preset must be a dpfbo.Preset, got {'M': 3}"),
    "one callback": (lambda: optimized(callbacks=print), "callbacks must be a list of functions, got <"),
    "a number as folder": (lambda: optimized(folder=3), "folder must be a path, got 3"),
    "a file as folder": (lambda: optimized(folder=__file__), "cannot be written: Not a directory"),
    "hours as text": (lambda: optimized(timeout="1h"), "timeout must be a finite number above 0, got '1h'"),
    "a gain of draws": (lambda: optimized(algorithm="ts", min_gain=1), "min_gain has no effect on algorithm=ts"),
    "Optuna's catch": (lambda: optimized(catch=ValueError), "'catch': give on_failure='penalty'"),
    "a value forgotten": (lambda: Agent(studied(), 0).tell({"x": 0.5}), "tell needs a value or failed=True"),
    "an agent too many": (lambda: Agent(studied(), 3), "agent must be at most 2, got 3"),
    "another parameter's name": (lambda: Agent(studied(), 0).tell({"z": 1}, 1.0), "must be one of 'x', got 'z'"),
}


@pytest.mark.parametrize(("mistake", "says"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.filterwarnings("ignore:.*agents will tune almost alone")
def test_a_mistake_is_one_sentence(mistake, says):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=says) as caught:
        mistake()
    assert "\n" not in str(caught.value)
