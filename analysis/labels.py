"""Labels and words for settings and problems."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dpfbo.formats.summary import is_outsourced

NAMES = {
    "ts": "TS",
    "local": "local EI",
    "fts_original": "FTS (2020)",
    "fts": "FTS",
    "fts_de": "FTS-DE",
    "shared_prior": "shared prior",
    "dp_fts": "DP-FTS",
    "dp_fts_de": "DP-FTS-DE",
    "dp_fts_de_plus": "DP-FTS-DE+",
    "dp_prior": "private prior",
    "random_server": "random server",
    "sobol_server": "Sobol server",
    "gp_ucb": "GP-UCB",
    "po_gp_ucb": "PO-GP-UCB",
    "gaussian_gp_ucb": "GP-UCB on Gaussian rows",
    "histogram_gp_ucb": "GP-UCB on histogram",
    "cover_gp_ucb": "cover (nothing released)",
    "random_rows": "random rows",
}

_PROBLEMS = {
    "grid_gp": "GP grid",
    "branin_grid": "Branin-Hoo grid",
    "loans": "loans (LendingClub)",
    "property_king_county": "property (King County)",
    "property_singapore": "property (Singapore)",
    "property_csv": "property (own file)",
}

FOLLOW: dict[Any, str] = {
    "never": "1 − p_t = 0",
    "inverse_square": "1 − p_t = 1/t²",
    "inverse": "1 − p_t = 1/t",
    "inverse_sqrt": "1 − p_t = 1/√t",
    "always": "1 − p_t = 1",
}  # in increasing order of how often an agent takes the server's query

AWARE: dict[Any, str] = {True: "noise-aware", False: "unaware"}  # whether the modeler knows the noise of the rows

VARIANTS = ("alpha", "function")  # settings that make different problems of one name

NOT_A_SETTING = {
    "again", "allow", "seed", "seeds", "scale", "sweep", "launcher", "results_dir", "data_dir", "problem.data_dir",
    "experiment_name", "progress", "resume", "executor", "tracker", "problem.preset", "problem.n_jobs",
}  # fmt: skip

_VALUES: dict[str, dict[Any, str]] = {
    "algorithm.follow": FOLLOW,
    "algorithm.local_initialisation": {True: "local initial points", False: "initial points anywhere"},
    "algorithm.message": {"sample": "sends draws", "mean": "sends means"},
    "algorithm.message_center": {True: "centred", False: "not centred"},
    "algorithm.message_normalize": {True: "messages scaled to the clip norm", False: "messages clipped"},
    "privacy.sampling": {"poisson": "Poisson sampling", "fixed_size": "fixed-size sampling"},
    "weights._target_": {"Softmax": "softmax weights", "Uniform": "uniform weights", "Power": "power weights"},
    "weights.decay.hold": {None: "weights never decay"},
    "algorithm.modeler.noise_aware": AWARE,
    "algorithm.modeler.repeat": {True: "candidates may repeat", False: "no candidate twice"},
    "transform.inflation": {"paper": "σ raised to √(σ² + w²)", "authors": "σ raised to σ + w"},
}
_KEYS = {
    "algorithm.lengthscale": "length-scale",
    "weights.decay.hold": "decay after",
    "problem.n_agents": "N",
    "problem.alpha": "α",
    "rounds": "T",
}


def label(config: dict[str, Any]) -> str:
    """Return a label for a setting, such as `DP-FTS-DE, P = 2, z = 1`.

    P is stated for algorithms that can have sub-regions; z or the target epsilon is stated for private ones. The label
    of an outsourced setting states the algorithm, the options of its modeler, the number r of released columns, and
    epsilon. An epsilon that was published without a guarantee is marked as claimed.
    """
    if is_outsourced(config):
        return _outsourced_label(config)
    a = config["algorithm"]
    parts = [NAMES.get(a["name"], a["name"])]
    if a["P"] > 1 or "_de" in a["name"]:
        parts.append(f"P = {a['P']}")
    if a["private"]:
        target = config["privacy"].get("epsilon")
        parts.append(f"z = {config['privacy']['z']:g}" if target is None else f"ε = {target:g}")
    return ", ".join(parts)


def claimed_epsilon(config: dict[str, Any]) -> float | None:
    """Return the epsilon that is claimed, without a guarantee, for an outsourced release; None if none is claimed."""
    return None if config["algorithm"]["private"] else config["transform"].get("epsilon")


def _outsourced_label(config: dict[str, Any]) -> str:
    a, transform = config["algorithm"], config["transform"]
    name, claimed = NAMES.get(a["name"], a["name"]), claimed_epsilon(config)
    told = [AWARE[a["modeler"]["noise_aware"]]] if adds_noise(config) else []
    told += ["fit = ml"] if a["modeler"].get("fit") == "ml" else []
    parts = [f"{name} ({', '.join(told)})" if told else name]
    if "r" in transform:
        parts.append(f"r = {transform['r']}")
    if claimed is not None:
        parts.append(f"claimed ε = {claimed:.2f}")
    elif a["private"]:
        parts.append(f"ε = {config['privacy']['epsilon']:.2f}")
    return ", ".join(parts)


def adds_noise(config: dict[str, Any]) -> bool:
    """Return True if Gaussian noise is added to the released rows."""
    return bool(config["transform"]["_target_"] == "GaussianNoise")


def labels(configs: Sequence[dict[str, Any]], flats: Sequence[dict[str, Any]], hashes: Sequence[str]) -> list[str]:
    """Return a unique label for each setting.

    Equal short labels are extended by distinguishing values or, failing that, part of a hash.
    """
    short = [label(config) for config in configs]
    # A noise multiplier that was calibrated to a target epsilon follows from it, so it distinguishes no settings.
    flats = [{k: v for k, v in f.items() if k != "privacy.z" or f.get("privacy.epsilon") is None} for f in flats]
    found = []
    for text, own in zip(short, flats, strict=True):
        keys = telling([flat for flat, other in zip(flats, short, strict=True) if other == text])
        found.append(", ".join([text, *(in_words(key, own[key]) for key in keys if key in own)]))
    return [text if found.count(text) == 1 else f"{text}, {name[:6]}" for text, name in zip(found, hashes, strict=True)]


def flat(config: dict[str, Any], own_function: bool) -> dict[str, Any]:
    """Return the configuration by dotted name, without keys that are no part of the setting, such as the seed.

    own_function: True if the seed of the run also draws the objective functions.
    """
    ignored = {*NOT_A_SETTING, *(() if config["algorithm"]["private"] else ("privacy",))}
    if own_function:
        ignored.add("problem.function_seed")
    if config["problem"].get("subset_seed") == config.get("seed"):
        ignored.add("problem.subset_seed")
    return dict(_by_dotted_name(config, "", ignored))


def _by_dotted_name(node: dict[str, Any], prefix: str, ignored: Collection[str]) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if name not in ignored and isinstance(value, dict):
            yield from _by_dotted_name(value, f"{name}.", ignored)
        elif name not in ignored:
            yield name, str(value) if isinstance(value, list) else value


def telling(flats: Sequence[dict[str, Any]]) -> list[str]:
    """Return a small set of keys whose values together tell the settings apart.

    The keys are tried one by one. A key is chosen if it separates settings that the keys chosen before do not separate.
    """
    keys = dict.fromkeys(key for one in flats for key in one)
    found: list[str] = []
    groups: list[tuple[Any, ...]] = [()] * len(flats)
    for key in sorted(keys, key=lambda key: not key.endswith("_target_")):
        split = [(*group, one.get(key)) for group, one in zip(groups, flats, strict=True)]
        if len(set(split)) > len(set(groups)):
            groups = split
            found.append(key)
    return [key for key in keys if key in found]


def in_words(key: str, value: object) -> str:
    """Return a key and its value in words, such as `q = 0.25` or `uniform weights`."""
    if key in _VALUES and value in _VALUES[key]:
        return _VALUES[key][value]
    return f"{key_in_words(key)} = {value_in_words(value)}"


def key_in_words(key: str) -> str:
    parts = key.split(".")
    return _KEYS.get(key, (parts[-2] if parts[-1] == "_target_" else parts[-1]).replace("_", " "))


def value_in_words(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value.rsplit(".", 1)[-1] if isinstance(value, str) else str(value)


def problem_label(problem: str) -> str:
    """Return the name of a problem in words."""
    return _PROBLEMS.get(problem, problem.replace("_", " "))


def variant_in_words(problem: dict[str, Any]) -> str:
    """Return the settings that distinguish variants of a problem, such as `, α = 0.3`; may be empty."""
    known = {key: problem[key] for key in VARIANTS if problem.get(key) is not None}
    words = (value_in_words(v) if key == "function" else in_words(f"problem.{key}", v) for key, v in known.items())
    return "".join(f", {text}" for text in words)


def joined_by_or(values: Iterable[float]) -> str:
    """Return the distinct values in order, such as `1, 2 or 4`."""
    texts = [f"{value:.3g}" for value in sorted(set(values))]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def by_algorithm(key: str, configs: Iterable[dict[str, Any]]) -> str:
    """Return a text that gives the value of `config["privacy"][key]`, such as `q = 1`.

    If the algorithms have different values, the text names the algorithms, as in
    `q = 0.35 (DP-FTS-DE) or 1 (private prior)`. If one algorithm has several values, the text is `q by setting`.
    """
    by_name: dict[str, set[float]] = {}
    for config in configs:
        by_name.setdefault(config["algorithm"]["name"], set()).add(config["privacy"][key])
    values = sorted(set().union(*by_name.values()))
    if len(values) == 1:
        return f"{key} = {values[0]:.3g}"
    if max(map(len, by_name.values())) > 1:
        return f"{key} by setting"
    names = {v: ", ".join(NAMES.get(n, n) for n in sorted(by_name) if v in by_name[n]) for v in values}
    return f"{key} = {' or '.join(f'{v:.3g} ({names[v]})' for v in values)}"
