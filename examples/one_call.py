"""Eight sites tune a model in one call and share one differentially private release.

Run it by `python examples/one_call.py`.
"""

import dpfbo

SPACE = {
    "rate": dpfbo.Float(1e-4, 1.0, log=True),
    "depth": dpfbo.Integer(1, 12),
    "kernel": dpfbo.Categorical(["linear", "rbf"]),
}


def score(site, x):
    """Stand in for the accuracy of the model that a site, 0..7, trains on its own data; larger is better."""
    best_depth = 4 + site % 2
    return -abs(x["rate"] - 0.01) - 0.1 * (x["depth"] - best_depth) ** 2 + 0.2 * (x["kernel"] == "rbf")


def main(rounds=10, sites=8):
    result = dpfbo.optimize(
        score, SPACE, n_agents=sites, algorithm="dp_prior", epsilon=1.0, delta=1e-3, rounds=rounds, seed=0
    )
    alone = dpfbo.optimize(score, SPACE, n_agents=sites, algorithm="local", rounds=rounds, seed=0)
    print(result)
    print(f"mean of the best scores: {result.curve[-1]:.4f}, each site alone: {alone.curve[-1]:.4f}")
    for best in result.best():
        print(f"site {best.agent}: {best.value:.4f} at {best.configuration}")
    return result


if __name__ == "__main__":
    main()
