"""Claims: the runs they select, their verdicts on made-up results with known effects, and the command."""

import csv
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from analysis import claims
from analysis.evidence import verdict_table
from analysis.evidence.claim import PAPER, published_means
from analysis.evidence.claim_tests import Comparison, cheaper, control, level, with_error
from analysis.evidence.selection import MEASURES, Case, SettingFilter, Unclear, blind_server, published_yaml
from analysis.evidence.verdicts import (
    CONTRARY,
    HOLDS,
    LOOKS,
    NOT_RUN,
    OPEN,
    SAME,
    Estimate,
    Evidence,
    family_verdicts,
    mean_of,
)
from analysis.load import Run, load, normalised
from tests.helpers.compose import compose
from tests.helpers.result_folders import alone, judged, server_node

SIZES = {"synthetic": (200, 40, "simple_regret"), "landmine": (29, 60, "one_minus_auc")}
PRESET = {
    "follow": "inverse_sqrt", "message": {"M": 50, "lengthscale": 0.03}, "own_draw": "exact", "n_init": 10,
    "decay": {"hold": 5}, "S": {1: 8, "default": 11},
}  # fmt: skip
names = (f"setting{k}" for k in itertools.count())
TS, FTS = SettingFilter.of("ts"), SettingFilter.of("fts")


def write(results, experiment, values, server=None, P=1, q=None, z=None, S=None, problem="synthetic", changes=None,
          **summary):  # fmt: skip
    """Write finished runs of a setting. values: of flat curves, by seed; changes: settings by dotted name."""
    name, private = next(names), q is not None
    N, T, metric = SIZES[problem]
    for seed, value in values.items():
        folder = results / experiment / name / str(seed)
        folder.mkdir(parents=True)
        config = {
            "problem": {"n_agents": N, "preset": PRESET},
            "algorithm": {
                "name": "x", "server": server_node(server), "private": private, "P": P, "M": 50, "lengthscale": 0.03,
                "follow": "never" if server is None else "inverse_sqrt", "message": "sample",
                "own_draw": {"method": "exact"},
            },
            "weights": {"_target_": "dpfbo.federated.weights.softmax.Softmax", "a": 15.0, "decay": {"hold": 5}},
            "privacy": {"q": q, "z": z, "S": S, "sampling": "poisson", "epsilon": None},
            "n_init": 10,
        }  # fmt: skip
        if problem == "synthetic":
            config["problem"]["function_seed"] = seed
        else:
            config["problem"]["score"] = "platt"
        for key, new in (changes or {}).items():
            node = config
            *parents, last = key.split(".")
            for part in parents:
                node = node[part]
            node[last] = new
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        content = {
            "experiment": experiment, "setting": name, "seed": seed, "n_agents": N, "rounds": T, "problem": problem,
            "metric": metric, "lower_is_better": True, "private": private, "curve": {"mean": [9.0] + [value] * T},
            "algorithm": "x", "relation": "zero-out", "accountant": "moments", "rng": "seeded", "epsilon_covers": "all",
            "n_charges": T, "seconds": {"objective": 0.5, "total": 1.0},
            "delta": N**-1.1, "epsilon": {"moments": 9.912}, "clip_fraction": 0.008, **summary,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(content))


def verdict(results, id):
    (found,) = (f for f in judged(results, id.split(".")[0]) if f.id == id)
    return found


def spread(n=10, mean=1.0, sd=0.3, seed=0):
    return dict(enumerate(np.random.default_rng(seed).normal(mean, sd, n)))


def shifted(values, by, sd=0.01, seed=1):
    rng = np.random.default_rng(seed)
    return {seed: value + by + sd * rng.normal() for seed, value in values.items()}


@pytest.mark.parametrize(("gain", "expected"), [(0.05, HOLDS), (-0.05, CONTRARY), (0.0, SAME)])
def test_an_effect_is_found_seed_by_seed(tmp_path, gain, expected):
    """Functions differ by 0.3, the gain is 0.05: only paired seeds show it."""
    base = spread()
    write(tmp_path, "fig2a", base)
    write(tmp_path, "fig2a", shifted(base, -gain), server="Server")
    found = verdict(tmp_path, "fig2a.fts_beats_ts")
    assert found.verdict == expected
    assert found.units == "10 functions"
    if gain:
        assert np.sign(found.standard_errors) == np.sign(gain) and abs(found.standard_errors) > 5


def test_an_experiment_that_was_judged_often_needs_a_clearer_effect(tmp_path, monkeypatch):
    base = spread()
    write(tmp_path, "fig2a", base)
    write(tmp_path, "fig2a", shifted(base, -0.05), server="Server")
    looks = published_yaml("settings.yaml")["looks"]
    assert set(looks) <= {claim.experiment for claim in claims.claims()} and min(looks.values()) > LOOKS
    for count, expected in ((LOOKS, HOLDS), (10**9, OPEN)):
        monkeypatch.setitem(looks, "fig2a", count)
        assert verdict(tmp_path, "fig2a.fts_beats_ts").verdict == expected


def test_without_pairs_nothing_is_decided(tmp_path):
    base = spread(20)
    write(tmp_path, "fig2a", {seed: base[seed] for seed in range(10)})
    write(tmp_path, "fig2a", {seed: base[seed] - 9 for seed in range(10, 20)}, server="Server")
    found = verdict(tmp_path, "fig2a.fts_beats_ts")
    assert (found.verdict, found.ours, found.standard_errors) == (OPEN, "no seed in common", None)


def test_one_function_decides_nothing_however_often_it_is_started(tmp_path):
    base = {seed: 1.0 + 0.001 * seed for seed in range(10)}
    one = {"problem.function_seed": 7}
    write(tmp_path, "fig2a", base, changes=one)
    write(tmp_path, "fig2a", shifted(base, -0.5), server="Server", changes=one)
    found = verdict(tmp_path, "fig2a.fts_beats_ts")
    assert (found.verdict, found.units, found.standard_errors) == (OPEN, "1 function", None)


def test_what_is_not_there_was_not_run(tmp_path):
    assert {f.verdict for f in judged(tmp_path / "nowhere")} == {NOT_RUN}
    write(tmp_path, "fig2a", spread())
    found = verdict(tmp_path, "fig2a.fts_beats_ts")
    assert (found.verdict, found.ours) == (NOT_RUN, "no finished run of FTS (N = 200, T = 40)")
    assert judged(tmp_path, "demo") == []


def test_runs_of_another_size_or_with_other_settings_do_not_count(tmp_path):
    base = spread()
    write(tmp_path, "fig2a", base, rounds=39, curve={"mean": [1.0] * 40})
    write(tmp_path, "fig2a", base, server="Server", changes={"algorithm.M": 100})
    assert {f.verdict for f in judged(tmp_path, "fig2a")} == {NOT_RUN}


@pytest.mark.parametrize(
    ("changes", "summary"),
    [
        ({}, {"metric": "nmse"}),
        ({}, {"lower_is_better": False}),
        ({"weights.decay.steps": 9, "problem.preset": PRESET | {"decay": {"hold": 5, "steps": 5}}}, {}),
        ({"algorithm.own_gp": {"noise": 0.1}, "problem.preset": PRESET | {"own_gp": {"noise": 0.01}}}, {}),
        ({"algorithm.paired": True}, {}),
        ({"dropout": {"deadline": 3.0}}, {}),
    ],
)
def test_runs_of_other_problems_and_algorithms_do_not_count(tmp_path, changes, summary):
    write(tmp_path, "fig2a", spread(2))
    assert runs_found(tmp_path, Case.named("synthetic"), TS) == 2
    write(tmp_path, "other", spread(2), changes=changes, **summary)
    assert runs_found(tmp_path, Case.named("synthetic"), TS, "other") == 0


def runs_found(results, case, where, experiment="fig2a"):
    return sum(run in case and where.matches(run) for run in load(results, experiment))


@pytest.mark.parametrize(("P", "S", "count"), [(1, 8, 2), (2, 11, 2), (1, 11, 0)])
def test_without_a_clip_norm_the_preset_s_is_meant(tmp_path, P, S, count):
    write(tmp_path, "fig2a", spread(2), server="Server", P=P, q=0.25, z=1, S=S)
    assert runs_found(tmp_path, Case.named("synthetic"), SettingFilter.of(f"dp P={P} q=0.25 z=1")) == count
    assert runs_found(tmp_path, Case.named("synthetic"), SettingFilter.of(f"dp P={P} q=0.25 z=1 S={S}")) == 2


def test_a_problem_is_named_or_begins_so(tmp_path):
    write(tmp_path, "fig2a", spread(1), problem="synthetic")
    (run,) = load(tmp_path, "fig2a")
    for problem, expected in (("synthetic", True), ("synth_", False), ("syn", False), ("landmine", False)):
        assert (run in Case(problem, 200, 40, "simple_regret")) is expected
    for name, prefix in (("synthetic_heterogeneous", "synthetic"), ("activity_official", "activity_")):
        other = replace(run, summary=run.summary | {"problem": name})
        assert (other in Case(prefix, 200, 40, "simple_regret")) is prefix.endswith("_")


def test_a_claim_that_could_be_about_two_settings_is_not_decided_and_the_others_are(tmp_path):
    base = spread()
    for acquisition in ("a", "b"):
        write(tmp_path, "fig2a", base, changes={"acquisition": acquisition})
    write(tmp_path, "fig2a", shifted(base, 0.1), server="Server")
    write(tmp_path, "fig2a", base, server="Server", P=2)
    found = verdict(tmp_path, "fig2a.fts_beats_ts")
    assert (found.verdict, found.standard_errors) == (OPEN, None)
    assert found.ours.startswith("two settings could be meant: setting") and found.ours.endswith("are all TS")
    assert verdict(tmp_path, "fig2a.de2_beats_fts").verdict == HOLDS


def test_results_that_cannot_be_read_stop_only_their_own_claims(tmp_path, capsys):
    write(tmp_path, "fig2a", spread())
    write(tmp_path, "fig2a", shifted(spread(), -0.1), server="Server")
    (tmp_path / "fig5" / "x" / "0").mkdir(parents=True)
    (tmp_path / "fig5" / "x" / "0" / "summary.json").write_text("{")
    assert claims.main([f"results_dir={tmp_path}", "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "the claims about fig5 were not judged" in error
    text = (tmp_path / "out" / "claims.md").read_text()
    assert "FTS beats TS" in text and "4 claims about fig5 (results cannot be read: " in text
    assert {f.verdict for f in judged(tmp_path, "fig5")} == {NOT_RUN}


def test_a_run_without_the_number_decides_nothing(tmp_path):
    private = dict(server="Server", P=2, q=0.25, z=1, S=11)
    write(tmp_path, "fig2c", spread(2), **private, epsilon={"moments": None})
    found = verdict(tmp_path, "fig2c.epsilon_q0.25_z1")
    assert (found.verdict, found.ours) == (OPEN, "a run without a finite ε of the moments accountant")
    write(tmp_path, "fig4", spread(2), server="Server", q=0.25, z=1, S=8, clip_fraction=None)
    found = verdict(tmp_path, "fig4.clipped")
    assert found.verdict == OPEN and found.ours.startswith("a run lacks the compared number: setting")


def test_variants_are_told_apart(tmp_path):
    """Fig. 5 and 12: the standard setting is not one of its variants, though all are DP-FTS-DE at the same privacy."""
    base, private = spread(), dict(server="Server", P=2, q=0.25, z=1, S=11)
    variants = {
        "fig5.weights": {"weights": {"_target_": "dpfbo.federated.weights.uniform.Uniform"}},
        "fig5.initialisation": {"algorithm.local_initialisation": False},
        "fig12a.adaptive": {"weights.decay.hold": None},
    }
    for experiment in ("fig5", "fig12a"):
        write(tmp_path, experiment, base, **private)
    for id, changes in variants.items():
        write(tmp_path, id.split(".")[0], shifted(base, 0.1), **private, changes=changes)
    assert [verdict(tmp_path, id).verdict for id in variants] == [HOLDS] * 3


def controlled(results, blind):
    """Fig. 4's two private settings, P = 1 and 2, each 0.1 below its blind server, plus `blind` by P."""
    base = spread()
    for P, S in ((1, 8), (2, 11)):
        write(results, "fig4", shifted(base, P, seed=P), server="Server", P=P, q=0.25, z=1, S=S)
        if P in blind:
            write(results, "fig4", shifted(base, P + blind[P], seed=10 + P), server="RandomServer", P=P)
    return verdict(results, "fig4.control")


@pytest.mark.parametrize(("blind", "expected"), [({1: 0.2, 2: 0.0}, HOLDS), ({1: 0.1, 2: -0.3}, CONTRARY)])
def test_a_control_is_the_mean_over_the_settings_of_a_figure(tmp_path, blind, expected):
    """Each setting is compared with the server that has its P."""
    found = controlled(tmp_path, blind)
    assert (found.verdict, found.source, found.kind, found.units) == (expected, "control", "control", "10 functions")
    number, _, words = found.ours.replace("−", "-").partition(" ± ")
    assert float(number) == pytest.approx(np.mean([*blind.values()]), abs=0.01) and words.endswith("(random server)")


def test_every_setting_needs_its_control(tmp_path):
    found = controlled(tmp_path, {1: 0.1})
    assert found.verdict == NOT_RUN and "no finished run of random server, P = 2" in found.ours


def test_every_kind_of_blind_server_must_be_beaten():
    base, kinds = spread(), ("random_server", "sobol_server")
    where = SettingFilter.of("fts")
    test = control([(where, [blind_server(kind, "fts") for kind in kinds])], MEASURES["overall"], 0.05)
    assert [end.words for end in test.ends] == ["random server", "Sobol server"]
    assert test.settings == (where, *(SettingFilter.of(kind) for kind in kinds)) and len(test.level) == 4
    for weights in (end.weights for end in test.ends):
        assert sum(weights) == 0 and weights[0] == -1
    d = [mean_of(list(shifted(base, by, sd=0.1).values())) for by in (0.0, -1.1)]
    assert family_verdicts([Evidence(tuple(d))])[0][0] != HOLDS


def test_equal_differences_decide_nothing_and_say_so(tmp_path):
    write(tmp_path, "fig2a", {0: 1.0, 1: 2.0, 2: 4.0})
    write(tmp_path, "fig2a", {0: 1.5, 1: 2.5, 2: 4.5}, server="Server")
    found = verdict(tmp_path, "fig2a.fts_beats_ts")
    assert (found.verdict, found.standard_errors) == (OPEN, None)
    assert found.ours.startswith("−0.5, all differences equal")


def test_mirrored_claims_of_paper_and_reimplementation(tmp_path):
    base = spread()
    write(tmp_path, "fig4", base, server="Server", P=1, q=0.25, z=1, S=8)
    write(tmp_path, "fig4", shifted(base, 0.1), server="Server", P=2, q=0.25, z=1, S=11)
    helps, hurts = verdict(tmp_path, "fig4.de_helps"), verdict(tmp_path, "fig4.de_hurts")
    assert (helps.verdict, helps.source) == (CONTRARY, "paper")
    assert (hurts.verdict, hurts.source) == (HOLDS, "reimplementation")
    assert helps.standard_errors == pytest.approx(-hurts.standard_errors)
    notes = verdict_table.notes(judged(tmp_path, "fig4"))
    assert sum(note.startswith("Reimplementation: a program written independently") for note in notes) == 1


def test_what_is_asked_twice_counts_once(tmp_path):
    """Two figures print the same epsilon."""
    for experiment in ("fig2c", "fig2d"):
        write(tmp_path, experiment, spread(), server="Server", P=2, q=0.25, z=1, S=11)
    found = judged(tmp_path, "fig2c", "fig2d")
    assert sum(f.verdict == HOLDS for f in found) == 2
    assert dict(verdict_table.kinds(found))["printed privacy losses"][HOLDS] == 1
    assert verdict_table.notes(found)[0].startswith("1 claim repeats a claim about another")


def test_agreement_is_not_said_where_the_effect_has_the_other_sign(tmp_path):
    """FTS-DE lies at its published curve, and TS, which it should beat, a little below it."""
    known = published_means("landmine_platt", PAPER)[SettingFilter.of("fts P=4")]
    curve = np.interp(range(61), list(known), [mean.value for mean in known.values()])
    noise = np.random.default_rng(0).normal(0, 0.002, (2, 12))
    for k, (server, P, by) in enumerate(((None, 1, 0.002), ("Server", 4, 0.0))):
        for seed in range(12):
            one, name = {"mean": list(curve + noise[k, seed] - by)}, f"P{P}"
            write(tmp_path, "fig3_landmine_platt", {seed: 0.0}, server, P, problem="landmine", curve=one, setting=name)
    assert verdict(tmp_path, "fig3_landmine_platt.curve_fts_de").verdict == OPEN
    assert "has the other sign" in " ".join(verdict_table.RULE.split())


def test_every_finding_has_its_kind(tmp_path):
    by_kind = {(f.kind, f.source) for f in judged(tmp_path)}
    assert by_kind == {
        ("effect", "paper"), ("agreement", "paper"), ("epsilon", "paper"), ("control", "control"),
        ("effect", "reimplementation"), ("agreement", "reimplementation"), ("own", "own"),
    }  # fmt: skip
    assert sum(sum(n.values()) for _, n in verdict_table.kinds(judged(tmp_path))) == sum(
        verdict_table.counts(judged(tmp_path)).values()
    )


def test_a_trend_needs_all_its_settings(tmp_path):
    base = spread()
    for q, by in ((0.5, 0.0), (0.25, 0.05)):
        write(tmp_path, "fig2c", shifted(base, by, seed=int(100 * q)), server="Server", P=2, q=q, z=1, S=11)
    assert verdict(tmp_path, "fig2c.larger_q").verdict == NOT_RUN
    write(tmp_path, "fig2c", shifted(base, 0.1), server="Server", P=2, q=0.15, z=1, S=11)
    found = verdict(tmp_path, "fig2c.larger_q")
    assert found.verdict == HOLDS and found.ours.startswith("0.0499 ±")
    assert found.claim.endswith("; slope per step of mean regret over rounds 1 to 40")


def test_printed_epsilons(tmp_path):
    write(tmp_path, "fig2c", spread(2), server="Server", P=2, q=0.25, z=1, S=11)
    found = verdict(tmp_path, "fig2c.epsilon_q0.25_z1")
    assert (found.verdict, found.published, found.ours, found.units) == (HOLDS, "9.91", "9.91", "exact")
    wrong = {"epsilon": {"moments": 5.94}}
    write(tmp_path, "fig2c", spread(2), server="Server", P=2, q=0.15, z=1, S=11, **wrong)
    assert verdict(tmp_path, "fig2c.epsilon_q0.15_z1").verdict == CONTRARY


def test_published_curve_and_effect(tmp_path):
    """Both settings lie at the published TS curve; FTS-DE's published one is not excluded, but beyond two errors."""
    published = [mean.value for mean in published_means("landmine_platt", PAPER)[TS].values()]  # after 0, 10, .., 60
    curve = np.interp(range(61), range(0, 70, 10), published)
    noise = np.random.default_rng(0).normal(0, 0.002, (2, 12))
    for (k, server, P), seed in itertools.product(((0, None, 1), (1, "Server", 4)), range(12)):
        one = {"mean": list(curve + noise[k, seed])}
        write(
            tmp_path, "fig3_landmine_platt", {seed: 0.0}, server, P, problem="landmine", curve=one, setting=str(server)
        )
    found = verdict(tmp_path, "fig3_landmine_platt.curve_ts")
    assert (found.verdict, found.units) == (HOLDS, "12 seeds, same data")
    assert -3 < found.standard_errors <= 0
    assert verdict(tmp_path, "fig3_landmine_platt.fts_de_beats_ts").verdict == SAME
    assert verdict(tmp_path, "fig3_landmine_platt.curve_fts_de").verdict == OPEN


def runs_of(tmp_path, *settings, **summaries):
    for values, kind in settings:
        write(tmp_path, "made_up", values, **kind)
    return load(tmp_path, "made_up")


def test_no_difference(tmp_path):
    base = spread()
    runs = runs_of(tmp_path, (base, {}), (shifted(base, 0.0), {"server": "Server"}))
    for margin, expected in ((0.1, HOLDS), (0.001, OPEN)):
        assert alone(level(FTS, TS, margin, MEASURES["overall"]).outcome(runs)) == expected
    far = runs_of(tmp_path, (shifted(base, 0.5), {"server": "Server", "P": 2}))
    assert alone(level(SettingFilter.of("fts P=2"), TS, 0.1, MEASURES["overall"]).outcome(far)) == CONTRARY


def test_no_worse_prints_the_difference(tmp_path):
    """A loss of 0.01 of 1 lies within the margin of 5 %."""
    base = spread()
    runs = runs_of(tmp_path, (base, {}), (shifted(base, 0.01), {"server": "Server"}))
    outcome = level(FTS, TS, 0.05, MEASURES["overall"], both=False).outcome(runs)
    assert alone(outcome) == HOLDS and outcome.ours.startswith("−0.0") and outcome.standard_errors > 3
    assert alone(level(FTS, TS, 0.001, MEASURES["overall"], both=False).outcome(runs)) != HOLDS
    assert level(FTS, TS, 0.05, MEASURES["overall"], both=False).words.endswith("margin 5 %")


def test_identical_runs_are_not_called_level(tmp_path):
    runs = runs_of(tmp_path, (spread(), {}), (spread(), {"server": "Server"}))
    outcome = level(FTS, TS, 0.1, MEASURES["overall"]).outcome(runs)
    assert (alone(outcome), outcome.ours) == (OPEN, "0, all values equal")
    assert alone(level(FTS, TS, 0.1, MEASURES["overall"], both=False).outcome(runs)) == HOLDS  # they do no harm


def test_tiny_errors_are_printed_with_an_exponent():
    assert with_error(Estimate(6.6e-12, 7.94e-12, 19, 20)) == "6.6e−12 ± 7.94e−12"
    assert with_error(Estimate(0.0209, 0.0011, 19, 20)) == "0.0209 ± 0.0011"


def test_late_rounds(tmp_path):
    write(tmp_path, "made_up", {0: 0.0}, curve={"mean": [5.0] * 20 + [1.0] * 21})
    (run,) = load(tmp_path, "made_up")
    assert MEASURES["late"].of(run) == 1.0


def test_cost_is_a_ratio(tmp_path):
    for P, factor in ((1, 1.0), (4, 1.1)):
        for seed in range(5):
            seconds = {"total": 10.0 + factor * (1 + seed + 0.01 * seed * P), "objective": 10.0}
            write(
                tmp_path, "made_up", {seed: 1.0}, "Server", P, 0.35, 1, 22, "landmine", seconds=seconds,
                setting=f"cost{P}",
            )  # fmt: skip
    runs = load(tmp_path, "made_up")
    four, one = (SettingFilter.of(f"dp P={P} q=0.35 z=1 S=22") for P in (4, 1))
    for ratio, expected in ((1.24, HOLDS), (1.05, CONTRARY)):
        outcome = cheaper(four, one, ratio, MEASURES["seconds"]).outcome(runs)
        assert alone(outcome) == expected and outcome.ours.startswith("1.1")
    write(tmp_path, "made_up", {0: 1.0}, "Server", 2, 0.35, 1, 22, "landmine", seconds={"total": 1, "objective": 1})
    with pytest.raises(Unclear, match="a cost of 0"):
        cheaper(SettingFilter.of("dp P=2 q=0.35 z=1 S=22"), one, 1.24, MEASURES["seconds"]).outcome(
            load(tmp_path, "made_up")
        )


def test_contrasts_weigh_nothing_but_differences():
    """A metric that is equal in all runs supports no claim of the list."""
    for claim in claims.claims():
        if isinstance(claim.test, Comparison) and claim.test.form in ("superiority", "control"):
            assert sum(claim.test.weights) == pytest.approx(0, abs=1e-12)


def test_the_list():
    """Ids are unique, figures exist, controls have the P of their setting, and no words are missing."""
    known = claims.claims()
    assert len({claim.id for claim in known}) == len(known)
    assert {
        f"fig{n}" for n in ("2a", "2b", "2c", "2d", "4", "5", "6", "7a", "7b", "8", "9", "10", "11", "12a", "12b")
    } < {claim.experiment for claim in known}
    assert all(claim.id.startswith(f"{claim.experiment}.") for claim in known)
    assert sum(claim.test.words.startswith("moments") for claim in known) == 3 + 3 + 5 + 5
    assert blind_server("sobol_server", "dp P=2 q=0.25 z=1").words == "Sobol server, P = 2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dp P=2 zz=1", "setting 'dp P=2 zz=1' must name some of P, q, z, .*, got 'zz'"),
        ("tss", "setting 'tss' must name some of ts, local, fts, .*, got 'tss'"),
    ],
)
def test_a_setting_that_is_not_known_is_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        SettingFilter.of(text)


PROBLEMS = {"fig5": "synthetic", "fig9": "landmine"}


def summary_of(experiment, config):
    return {
        "experiment": experiment, "problem": PROBLEMS[experiment], "metric": SIZES[PROBLEMS[experiment]][2],
        "lower_is_better": True, "n_agents": config["problem"]["n_agents"], "rounds": config["rounds"],
        "curve": {"mean": [1.0] * (config["rounds"] + 1)},
    }  # fmt: skip


@pytest.mark.parametrize("experiment", PROBLEMS)
def test_claims_know_the_settings_of_the_experiments(experiment):
    """With the settings of conf/, every claim finds exactly one run for each of its settings."""
    entries = compose(f"experiment={experiment}").sweep.settings
    configs = [
        OmegaConf.to_container(compose(f"experiment={experiment}", *entry.split()), resolve=True) for entry in entries
    ]
    runs = [
        Run(f"setting{k}", 0, normalised(config), summary_of(experiment, config), Path())
        for k, config in enumerate(configs)
    ]
    for claim in claims.claims([experiment]):
        assert alone(claim.outcome(runs)) == OPEN


@pytest.fixture
def results(tmp_path):
    base = spread()
    write(tmp_path / "results", "fig2a", base)
    write(tmp_path / "results", "fig2a", shifted(base, -0.1), server="Server")
    return tmp_path / "results"


def test_command_writes_and_prints(results, tmp_path, capsys):
    out = tmp_path / "figures"
    assert claims.main([f"results_dir={results}", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "FTS beats TS" in printed and "Published effects: 1 holds, " in printed
    assert sorted(path.name for path in out.iterdir()) == ["claims.csv", "claims.md"]
    text = (out / "claims.md").read_text()
    assert "| **holds** |" in text and "Holm's correction" in text
    assert "- Fig. 2a: FTS-DE with P = 2 beats FTS; mean regret" in text and "- Fig. 5: 4 claims about fig5\n" in text
    rows = list(csv.DictReader((out / "claims.csv").open()))
    assert len(rows) == len(claims.claims())
    assert [row["verdict"] for row in rows if row["id"] == "fig2a.fts_beats_ts"] == [HOLDS]


def test_json(results, tmp_path, capsys):
    assert claims.main(["fig2a", f"results_dir={results}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["summary"][HOLDS] == 1 and {f["experiment"] for f in answer["findings"]} == {"fig2a"}
    assert answer["kinds"]["published effects"][HOLDS] == 1


def test_only_a_whole_table_is_written_unasked(results, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["fig2a"], ["--json"]):
        assert claims.main([*arguments, f"results_dir={results}"]) == 0
        assert not Path("figures").exists()
    assert claims.main(["fig2a", f"results_dir={results}", "--out", "some"]) == 0
    assert claims.main([f"results_dir={results}"]) == 0
    sizes = [len((Path(folder) / "claims.csv").read_text().splitlines()) for folder in ("some", "figures")]
    assert sizes[0] < 20 < sizes[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "no finished run in"), (["fig4"], "no finished run of fig4"), (["fig99"], "no claim about 'fig99'")],
)
def test_nothing_to_judge(tmp_path, capsys, arguments, words):
    out = tmp_path / "figures"
    assert claims.main([*arguments, f"results_dir={tmp_path}", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not out.exists()
