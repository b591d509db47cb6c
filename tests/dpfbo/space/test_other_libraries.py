"""Spaces of Optuna and ConfigSpace become spaces of dpfbo and, for Optuna, back."""

import sys

import pytest
import torch

from dpfbo import Categorical, Fixed, Float, Integer, Ordinal, SettingError, Space
from dpfbo.extras import MissingPackage


class TestOptuna:
    @pytest.fixture(autouse=True)
    def optuna(self):
        return pytest.importorskip("optuna")

    def test_distributions_become_parameters(self, optuna):
        d = optuna.distributions
        space = Space.from_optuna(
            {
                "rate": d.FloatDistribution(1e-4, 1, log=True),
                "drop": d.FloatDistribution(0, 0.5, step=0.1),
                "depth": d.IntDistribution(1, 12),
                "units": d.IntDistribution(16, 64, step=16),
                "width": d.IntDistribution(1, 64, log=True),
                "kernel": d.CategoricalDistribution(["linear", "rbf", None]),
                "jobs": d.IntDistribution(4, 4),
                "loss": d.CategoricalDistribution(["hinge"]),
            }
        )
        assert space.parameters == {
            "rate": Float(1e-4, 1, log=True),
            "drop": Float(0, 0.5, step=0.1),
            "depth": Integer(1, 12),
            "units": Integer(16, 64, step=16),
            "width": Integer(1, 64, log=True),
            "kernel": Categorical(["linear", "rbf", None]),
            "jobs": Fixed(4),
            "loss": Fixed("hinge"),
        }

    def test_the_way_back(self, optuna):
        d = optuna.distributions
        space = Space(
            {
                "rate": Float(1e-4, 1.0, log=True),
                "drop": Float(0.0, 1.0, step=0.3),
                "units": Integer(16, 70, step=16),
                "kernel": Categorical(["linear", "rbf"]),
                "size": Ordinal([32, 64]),
                "jobs": Fixed(4),
            }
        )
        given = space.to_optuna()
        assert given == {
            "rate": d.FloatDistribution(1e-4, 1.0, log=True),
            "drop": d.FloatDistribution(0.0, 0.9, step=0.3),
            "units": d.IntDistribution(16, 64, step=16),
            "kernel": d.CategoricalDistribution(["linear", "rbf"]),
            "size": d.CategoricalDistribution([32, 64]),
            "jobs": d.CategoricalDistribution([4]),
        }
        again = Space.from_optuna(given)
        assert again.to_optuna() == given
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask(given)
        assert set(space.configuration(space.natural(trial.params))) == set(space.parameters)

    def test_values_are_those_of_optuna(self, optuna):
        """With a step that does not hit the upper bound, too."""
        with pytest.warns(UserWarning, match="not divisible"):
            distribution = optuna.distributions.FloatDistribution(0, 1, step=0.3)
        assert Space.from_optuna({"a": distribution}).parameters["a"].size == Float(0, 1, step=0.3).size == 4

    def test_what_cannot_be_converted(self, optuna):
        with pytest.raises(SettingError, match=r"distributions.a must be a FloatDistribution, .*, got \(0, 1\)"):
            Space.from_optuna({"a": (0, 1)})
        with pytest.raises(SettingError, match="distributions must map names to distributions, got 3"):
            Space.from_optuna(3)
        conditional = Space({"k": Categorical(["x", "y"]), "a": Float(0, 1, when={"k": "x"})})
        with pytest.raises(SettingError, match="space.a.when cannot be given to Optuna, whose distributions have no"):
            conditional.to_optuna()


class TestConfigSpace:
    @pytest.fixture
    def cs(self):
        return pytest.importorskip("ConfigSpace")

    def test_parameters_and_conditions(self, cs):
        given = cs.ConfigurationSpace(seed=0)
        kernel = cs.CategoricalHyperparameter("kernel", ["rbf", "poly", "linear"])
        gamma = cs.UniformFloatHyperparameter("gamma", 1e-3, 1, log=True)
        degree = cs.UniformIntegerHyperparameter("degree", 2, 5)
        size = cs.OrdinalHyperparameter("size", ["s", "m", "l"])
        given.add(kernel, gamma, degree, size, cs.Constant("jobs", 4), cs.Categorical("loss", ["hinge"]))
        given.add(
            cs.EqualsCondition(gamma, kernel, "rbf"),
            cs.AndConjunction(cs.InCondition(degree, kernel, ["poly", "rbf"]), cs.EqualsCondition(degree, size, "s")),
        )
        space = Space.from_configspace(given)
        assert list(space.parameters) == list(given)
        assert space.parameters == {
            "kernel": Categorical(["rbf", "poly", "linear"]),
            "gamma": Float(1e-3, 1.0, log=True, when={"kernel": "rbf"}),
            "degree": Integer(2, 5, when={"kernel": ["poly", "rbf"], "size": "s"}),
            "size": Ordinal(["s", "m", "l"]),
            "jobs": Fixed(4),
            "loss": Fixed("hinge"),
        }
        for configuration in given.sample_configuration(50):  # both agree on what is active
            values = dict(configuration)
            assert space.configuration(space.natural(values)).keys() == values.keys()

    def test_a_choice_that_is_a_tuple(self, cs):
        given = cs.ConfigurationSpace()
        layers = cs.CategoricalHyperparameter("layers", [(64, 64), (32,)])
        rate = cs.UniformFloatHyperparameter("rate", 0, 1)
        given.add(layers, rate)
        given.add(cs.EqualsCondition(rate, layers, (64, 64)))
        space = Space.from_configspace(given)
        assert space.configuration(torch.zeros(2)) == {"layers": (64, 64), "rate": 0.0}

    @pytest.mark.parametrize(
        ("make", "sentence"),
        [
            (
                lambda cs: [cs.NormalFloatHyperparameter("a", 0, 1, -1, 1)],
                "configuration_space.a must be uniform, .* got [NB]",
            ),
            (
                lambda cs: [cs.BetaIntegerHyperparameter("a", 2, 2, 1, 9)],
                "configuration_space.a must be uniform, .* got [NB]",
            ),
            (lambda cs: [cs.Categorical("a", ["x", "y"], weights=[1, 3])], "categorical without weights, as dpfbo has"),
        ],
    )
    def test_priors_are_refused(self, cs, make, sentence):
        given = cs.ConfigurationSpace()
        given.add(*make(cs))
        with pytest.raises(SettingError, match=sentence):
            Space.from_configspace(given)

    def test_forbidden_clauses_and_other_conditions_are_refused(self, cs):
        given = cs.ConfigurationSpace({"a": (1, 9), "k": ["x", "y"]})
        given.add(cs.ForbiddenEqualsClause(given["k"], "y"))
        with pytest.raises(SettingError, match="configuration_space must have no forbidden clauses, got Forbidden: k"):
            Space.from_configspace(given)
        given = cs.ConfigurationSpace({"a": (1, 9), "b": (0.0, 1.0)})
        given.add(cs.GreaterThanCondition(given["b"], given["a"], 5))
        with pytest.raises(
            SettingError, match="must have conditions that are EqualsCondition, .* alone, got b | a > 5"
        ):
            Space.from_configspace(given)
        with pytest.raises(SettingError, match="configuration_space must be a ConfigSpace.ConfigurationSpace, got {}"):
            Space.from_configspace({})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Space.from_optuna({}), r"a space of Optuna needs optuna: pip install 'dpfbo\[optuna\]'"),
        (lambda: Space({"a": Float(0, 1)}).to_optuna(), r"a space of Optuna needs optuna: pip install"),
        (lambda: Space.from_configspace(0), r"ConfigSpace needs ConfigSpace: pip install 'dpfbo\[configspace\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(call, sentence, monkeypatch):
    for module in ("optuna", "optuna.distributions", "ConfigSpace"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=sentence):
        call()
