"""The terms of Theorem 1 and Proposition 1: the formulas, and the replay of finished runs."""

import itertools
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dpfbo
from dpfbo.federated import theory
from dpfbo.federated.server import Server
from dpfbo.gp import ConfidenceScale, OwnDraw, shared_features
from dpfbo.gp.posterior import sample_weights
from runners.compose.composition import Composition
from runners.identity.setting import names_of
from runners.recorded_run import run_configuration
from runners.theory import command
from runners.theory.terms import clipped_sets, read
from tests.helpers.compose import compose

SMALL = [
    "problem.n_agents=12",
    "rounds=5",
    "n_init=3",
    "algorithm.M=20",
    "tracker.wandb.mode=disabled",
    "progress=false",
]
GRID = ["problem.grid_size=60", "algorithm.P=2", "privacy.S=6", "privacy.q=0.6"]
BOX = ["problem=branin", "algorithm.P=2", "privacy.S=6.4", "privacy.q=0.6", "dropout.probability=0.2"]


def gain(K, points, noise):
    """`1/2 log det(I + K_A / noise)`, computed directly."""
    A = K[np.ix_(points, points)]
    return 0.5 * np.linalg.slogdet(np.eye(len(points)) + A / noise)[1]


class TestInformationGain:
    noise = 0.05

    @pytest.fixture(scope="class")
    def K(self):
        u = torch.rand(3, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return torch.stack([theory.se_kernel(points, 0.4) for points in u])  # 3 sets of 6 candidates

    def test_every_step_adds_the_best_candidate(self, K):
        got = theory.greedy_information_gain(K, 5, self.noise)
        assert got.shape == (3, 5)
        for matrix, gammas in zip(K.numpy(), got.tolist(), strict=True):
            chosen = []
            for gamma in gammas:
                best = max(range(6), key=lambda j: gain(matrix, [*chosen, j], self.noise))
                chosen.append(best)
                assert gamma == pytest.approx(gain(matrix, chosen, self.noise))

    def test_close_to_the_best_set(self, K):
        got = theory.greedy_information_gain(K, 3, self.noise)[:, -1].tolist()
        for matrix, gamma in zip(K.numpy(), got, strict=True):
            sets = itertools.combinations_with_replacement(range(6), 3)
            best = max(gain(matrix, list(points), self.noise) for points in sets)
            assert (1 - 1 / math.e) * best <= gamma <= best + 1e-9

    def test_increases_and_is_concave_beyond_the_number_of_candidates(self, K):
        steps = theory.greedy_information_gain(K, 20, self.noise).diff(dim=-1)
        assert (steps > 0).all()
        assert (steps.diff(dim=-1) <= 1e-12).all()

    @pytest.mark.parametrize(("steps", "noise", "name"), [(0, 1.0, "steps"), (2, 0.0, "noise")])
    def test_refusals(self, K, steps, noise, name):
        with pytest.raises(ValueError, match=f"{name} must be"):
            theory.greedy_information_gain(K, steps, noise)


def test_terms_of_the_regret_against_loops():
    T, P, N, M, q, B, eps = 4, 2, 5, 9, 0.4, 1.5, 0.1
    generator = np.random.default_rng(1)
    follow, gamma, sigma, d = (torch.from_numpy(generator.random(n)) for n in (T, T, T, N))
    weights, in_C = torch.from_numpy(generator.random((T, P, N))), torch.from_numpy(generator.random((T, N)) < 0.4)
    assert in_C.any(1).sum() > 1
    Delta = theory.agent_errors(gamma, B, eps, M, d)
    vartheta = theory.vartheta(follow, weights, in_C)
    psi = theory.psi(follow, weights, q, Delta.sum(1), sigma, M)
    for t in range(T):
        lost = sum(float(weights[t, i, n]) for i in range(P) for n in range(N) if in_C[t, n])
        assert float(vartheta[t]) == pytest.approx(float(follow[t]) * lost)
        errors = [eps * B * (t + 1) ** 2 + B + M**0.5 + float(d[n] + gamma[t] ** 0.5) for n in range(N)]
        assert Delta[t].tolist() == pytest.approx(errors)
        phi_max = max(float(weights[t, i, n]) for i in range(P) for n in range(N))
        inside = phi_max / q * sum(errors) + float(sigma[t]) * M**0.5
        assert float(psi[t]) == pytest.approx(float(follow[t]) * P * inside)


def test_explicit_constants_against_loops():
    T, P, N, M, q, B, R, eps, lam, delta = 4, 2, 5, 9, 0.4, 1.5, 0.3, 0.1, 1.5, 0.2
    generator = np.random.default_rng(2)
    follow, gamma, sigma, d = (torch.from_numpy(generator.random(n)) for n in (T, T, T, N))
    weights, counts = torch.from_numpy(generator.random((T, P, N))), 3 + torch.arange(T).double()
    Delta = theory.explicit_agent_errors(gamma, counts, ConfidenceScale(B, R, delta), eps, lam, M, T, d)
    psi = theory.explicit_psi(follow, weights, q, Delta.sum(1), sigma, M, B, delta)
    for t in range(T):
        k, phi_max = 3 + t, float(weights[t].max())
        errors = [
            eps * k / lam * (1 + k / lam) * (B + R * math.sqrt(2 * math.log(16 * N * (2 + T) / delta)))
            + B + R * math.sqrt(2 * (float(gamma[t]) + 1 + math.log(8 * N / delta)))
            + math.sqrt(M) + math.sqrt(2 * math.log(8 * N * T / delta)) + float(d[n])
            for n in range(N)
        ]  # fmt: skip
        assert Delta[t].tolist() == pytest.approx(errors)
        noise = 2 * float(sigma[t]) * math.sqrt(2 * M * math.log(8 * M / delta))
        inside = ((phi_max + 2) / q + 6) * sum(errors) + B * (2 + N * phi_max) / q + noise
        assert float(psi[t]) == pytest.approx(float(follow[t]) * P * inside)


def test_agents_errors_are_bounded():
    """Of 200 draws of eq. 2, at the theory's lambda: far from the bound, and with features that err by more than 0."""
    n, T, M, R, lam, generator = 200, 8, 40, 0.1, theory.regularization(8), torch.Generator().manual_seed(3)
    u = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    features = shared_features(M, 1, 0.3, np.random.default_rng(0))
    Phi, K = features(u[None])[0], theory.se_kernel(u, 0.3)
    f = K[:, 20]  # its norm in the RKHS is 1
    at = torch.randint(50, (n, T), generator=generator)
    y = f[at] + R * torch.randn(n, T, generator=generator, dtype=torch.float64)
    A = Phi[at]
    L = torch.linalg.cholesky(A @ A.mT + lam * torch.eye(T, dtype=torch.float64))
    w0, e = (torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (M, T))
    errors = (sample_weights(A, L, y, w0, lam**0.5 * e) @ Phi.mT - f).abs().amax(1)
    gamma = theory.greedy_information_gain(K, T, lam)[-1:]
    eps, d = theory.feature_error(K, Phi), torch.zeros(n).double()
    confidence = ConfidenceScale(1.0, R, 0.1)
    bound = theory.explicit_agent_errors(gamma, torch.tensor([float(T)]), confidence, eps, lam, M, T, d)
    assert eps > 0 and 1 < float(errors.max()) < float(bound.min())


@pytest.mark.parametrize("rounds", [0, 1.5, True])
def test_lambda(rounds):
    assert theory.regularization(8) == 1.25
    with pytest.raises(ValueError, match="rounds must be an integer of at least 1"):
        theory.regularization(rounds)


class TestOptions:
    scaled = "algorithm.own_draw.scale={norm_bound:2,noise_sd:0.1,delta:0.1}"

    def test_lambda_follows_the_rounds(self):
        given = ["algorithm.message_noise=theory", "algorithm.own_gp.noise=theory", "algorithm.own_gp.fit=given"]
        e, longer = (Composition.of(compose(*SMALL, *given, *more)) for more in ([], ["rounds=8"]))
        assert e.experiment.agents.message_noise == e.experiment.agents.own_gp.noise == 1.4
        assert longer.experiment.agents.message_noise == 1.25
        assert names_of(e.given).family != names_of(longer.given).family  # a longer run does not continue the shorter

    def test_runs_without_the_options_keep_their_names(self):
        """As before the options existed; an update of these means that finished runs are not found again."""
        for given, name in (
            ([], "7977bfea85a6"),
            (["problem=branin"], "e30203d275f4"),
            (["algorithm=local"], "68c13188e610"),
        ):
            assert names_of(compose(*given)).setting == name
        assert names_of(compose(self.scaled)).setting != "7977bfea85a6"
        plain = dpfbo.create_study(dpfbo.Box((0.0,), (1.0,)), n_agents=3, rng="seeded", algorithm="ts")
        plain = replace(plain, delta=1e-3)
        own = OwnDraw(scale=ConfidenceScale(2.0, 0.1, 0.1))
        assert plain.digest == "aad1d89a09c44b38"
        assert replace(plain, algorithm=replace(plain.algorithm, own_draw=own)).digest != plain.digest

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (["problem=branin", "algorithm.own_gp.noise=theory"], "needs algorithm.own_gp.fit=given"),
            (["algorithm.message_noise=theory", "rounds=0"], "rounds must be an integer of at least 1"),
            (["algorithm.message_noise=theorem"], "algorithm.message_noise must be a finite number above 0"),
            (["algorithm=local", scaled], "algorithm.own_draw.scale has no effect on algorithm=local"),
            (["algorithm.own_draw.scale=2"], "algorithm.own_draw.scale must have norm_bound, noise_sd and delta"),
            ([scaled.replace("delta:0.1", "delta:2")], "algorithm.own_draw.scale.delta must lie in"),
        ],
    )
    def test_refusals(self, given, says):
        with pytest.raises(ValueError, match=re.escape(says)):
            Composition.of(compose(*given))


def test_proposition_1_holds_with_equality():
    z, q, T, delta, epsilon = 1.0, 0.35, 60, 29**-1.1, 10.38
    c1, c2 = theory.smallest_c1(epsilon, q, T), theory.largest_c2(z, epsilon, q, T, delta)
    assert epsilon == pytest.approx(c1 * q**2 * T)
    assert z == pytest.approx(c2 * q * math.sqrt(T * math.log(1 / delta)) / epsilon)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A results folder with runs on a grid, on a box, and without sharing; and the messages of each."""
    results, seen, plain = tmp_path_factory.mktemp("results"), {}, Server.round
    with pytest.MonkeyPatch.context() as patch:
        others = {"alone": ["algorithm=ts"], "prior": ["algorithm=dp_prior"]}
        for name, given in {"grid": GRID, "box": BOX, **others}.items():
            messages = seen[name] = []

            def seeing(self, t, m, *late, s=messages):
                s.append(None if m is None else m.shard.step(t, None, send=True).messages)
                return plain(self, t, m, *late)

            patch.setattr(Server, "round", seeing)
            run_configuration(compose(*SMALL, *given, f"results_dir={results}", f"experiment_name={name}"))
    return results, seen


def only(results, name, file):
    (path,) = (results / name).glob(f"*/*/{file}")
    return path


@pytest.mark.parametrize("name", ["grid", "box"])
class TestReplay:
    def test_messages_are_those_of_the_run(self, runs, name):
        results, seen = runs
        run = read(only(results, name, "summary.json").parent)
        again = list(theory.replayed_messages(run.experiment.agents, 12, run.history()))
        assert len(again) == len(seen[name]) == 5
        for now, then in zip(again, seen[name], strict=True):
            torch.testing.assert_close(now, then, rtol=1e-6, atol=1e-8)

    def test_clipped_counts_are_those_of_the_server(self, runs, name, monkeypatch):
        results, seen = runs
        run = read(only(results, name, "summary.json").parent)
        in_C = clipped_sets(run)
        every = torch.stack([m.norm(dim=1) > run.message_norm for m in seen[name]])
        assert torch.equal(in_C, every)
        assert 0 < int(every.sum()) < every.numel()
        server = pd.read_parquet(only(results, name, "server.parquet"))
        recorded = (server["clip_fraction"].fillna(0) * server["n_chosen"]).round().astype(int)
        assert recorded.sum() > 0
        everybody = torch.ones(12, dtype=torch.bool)
        monkeypatch.setattr(type(run.mechanism), "choose", lambda *_: everybody)  # the check sees another subset
        with pytest.raises(ValueError, match="round 0 clips"):
            clipped_sets(run)


class TestCommand:
    def answer(self, results, name):
        assert command.main([name, f"results_dir={results}"]) == 0
        return json.loads(only(results, name, "theory.json").read_text())

    def test_file(self, runs):
        results, seen = runs
        content = self.answer(results, "grid")
        assert [entry["round"] for entry in content["rounds"]] == [1, 2, 3, 4, 5]
        assert all(set(entry) == {"round", *content["columns"]} for entry in content["rounds"])
        norm = read(only(results, "grid", "summary.json").parent).message_norm
        assert [entry["clipped"] for entry in content["rounds"]] == [
            int((m.norm(dim=1) > norm).sum()) for m in seen["grid"]
        ]
        shown = command.totals(content, "pld")
        assert shown["sum_vartheta"] == pytest.approx(sum(entry["vartheta"] for entry in content["rounds"]))
        assert shown["c1"] == content["proposition_1"]["c1_pld"] and shown["regret"] == content["rounds"][-1]["regret"]
        assert "upper bounds up to constants and logarithms" in content["note"]
        summary = json.loads(only(results, "grid", "summary.json").read_text())
        assert content["proposition_1"]["epsilon_pld"] == summary["epsilon"]["pld"]
        assert content["inputs"]["replay_checked"] and content["inputs"]["p_1"] == 0

    def test_psi_has_the_noise_of_the_paper(self, runs):
        results, _ = runs
        content = self.answer(results, "grid")
        first = content["rounds"][0]
        run = read(only(results, "grid", "summary.json").parent)
        e, m = run.experiment, run.mechanism
        phi_max = float(e.study.weights(0, e.agents.regions.assign(torch.arange(12)), 2).max())
        noise = m.noise_multiplier * m.clip_norm * math.sqrt(20)
        psi = 1.0 * 2 * phi_max / m.sampling_probability * (first["Delta"] + noise)
        assert first["psi"] == pytest.approx(psi)

    def test_explicit_columns_have_the_observations_behind_each_broadcast(self, runs):
        results, _ = runs
        content = self.answer(results, "grid")
        e = read(only(results, "grid", "summary.json").parent).experiment
        inputs, first = content["inputs"], content["rounds"][0]
        assert inputs["R"] == pytest.approx(math.sqrt(e.problem.noise_variance)) and inputs["lambda"] == 0.01
        assert "lambda = 0.01 instead of 1 + 2/T, own draws that beta_t does not scale" in content["note"]
        u = e.problem.domain.unit_points
        gamma = theory.greedy_information_gain(theory.se_kernel(u, e.settings.algorithm.lengthscale), 3, 0.01)[-1:]
        confidence, d = ConfidenceScale(1.0, inputs["R"], 0.1), torch.full((12,), inputs["d"]).double()
        given = (torch.tensor([7.0]).double(), confidence, inputs["eps"], 0.01, 20, 5, d)  # k_T = n_init + T - 1
        latest = float(theory.explicit_agent_errors(gamma, *given).sum())
        assert first["Delta_explicit"] < latest < content["rounds"][-1]["Delta_explicit"]
        assert all(entry["psi_explicit"] > entry["psi"] > 0 for entry in content["rounds"])

    def test_regret_is_the_recorded_one(self, runs):
        """After one round the cumulative regret is the agents' mean distance to their optimum, without noise."""
        results, _ = runs
        content = self.answer(results, "grid")
        run = read(only(results, "grid", "summary.json").parent)
        table = pd.read_parquet(only(results, "grid", "rounds.parquet"))
        index = np.stack(table.loc[table["round"] == 1, "x"].to_numpy())[:, 0] * 59
        values = run.experiment.problem.values.numpy()
        gaps = values.max(1) - values[np.arange(12), index.round().astype(int)]
        assert content["rounds"][0]["regret"] == pytest.approx(gaps.mean())

    def test_table_says_that_these_are_bounds_and_what_was_skipped(self, runs, capsys):
        results, _ = runs
        assert command.main(["box", f"results_dir={results}"]) == 0
        assert "upper bounds up to constants" in capsys.readouterr().out
        assert command.main(["alone", f"results_dir={results}"]) == 0
        assert "skipped" in (out := capsys.readouterr().out) and "nothing is clipped" in out
        assert command.main(["prior", f"results_dir={results}"]) == 0
        assert "its agents send no draws of eq. 2" in capsys.readouterr().out

    def refusal(self, capsys, *argv):
        assert command.main([*map(str, argv)]) == 1
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.startswith("error: ") and shown.err.count("\n") == 1
        return shown.err

    def test_refusals(self, runs, capsys, tmp_path):
        results, _ = runs
        assert "no finished run of 'other'" in self.refusal(capsys, "other", f"results_dir={results}")
        words = self.refusal(capsys, "grid", f"results_dir={results}", "--failure-probability", "2")
        assert "--failure-probability must lie in (0, 1], got 2.0" in words
        words = self.refusal(capsys, "grid", f"results_dir={results}", "--noise-sd", "0")
        assert "--noise-sd must be a finite number above 0, got 0.0" in words
        words = self.refusal(capsys, "grid", f"results_dir={results}", "--norm-bound", "-1")
        assert "--norm-bound must be a finite number above 0, got -1.0" in words

    def test_a_run_of_other_numbers_is_refused_and_nothing_is_written(self, runs, capsys, tmp_path):
        results, _ = runs
        folder = only(results, "box", "summary.json").parent
        copy = tmp_path / "box" / "setting" / "0"
        copy.mkdir(parents=True)
        for name in ("config.yaml", "summary.json", "rounds.parquet"):
            (copy / name).write_bytes((folder / name).read_bytes())
        server = pq.read_table(folder / "server.parquet")
        column = server.schema.get_field_index("clip_fraction")
        nobody = pa.array([0.0] * len(server), pa.float64())
        pq.write_table(server.set_column(column, "clip_fraction", nobody), copy / "server.parquet")
        assert "cannot be replayed: round" in self.refusal(capsys, "box", f"results_dir={tmp_path}")
        assert not list(tmp_path.rglob("*theory.json*"))
        (copy / "rounds.parquet").write_bytes(b"torn")
        assert "cannot be replayed" in self.refusal(capsys, "box", f"results_dir={tmp_path}")

    def test_one_torn_run_does_not_stop_the_others_and_real_releases_are_left_alone(self, runs, capsys, tmp_path):
        results, _ = runs
        folder = only(results, "grid", "summary.json").parent
        for seed in "012":
            shutil.copytree(folder, tmp_path / "grid" / "setting" / seed, ignore=lambda *_: ["theory.json"])
        (tmp_path / "grid" / "setting" / "0" / "rounds.parquet").write_bytes(b"torn")
        real = tmp_path / "grid" / "setting" / "2" / "summary.json"
        real.write_text(json.dumps({**json.loads(real.read_text()), "rng": "os"}))
        assert command.main(["grid", f"results_dir={tmp_path}"]) == 1
        shown = capsys.readouterr()
        assert "cannot be replayed" in shown.err and "its releases are real" in shown.out
        assert [path.parent.name for path in tmp_path.rglob("theory.json")] == ["1"]
