"""The functions that the files of conf/ call, such as `${draw_norm:100,2}`."""

from collections.abc import Callable

from omegaconf import OmegaConf


def _draw_norm(n_features: int, P: int) -> float:
    from dpfbo.federated.messages import usual_norm  # here: it loads torch, and --help and --cfg job need none

    return usual_norm(n_features, P)


_RESOLVERS: dict[str, Callable[..., float]] = {
    "by_regions": lambda by_P, P: by_P.get(P, by_P.default),  # the entry for P sub-regions, else the default
    "draw_norm": _draw_norm,
}


def register() -> None:
    """Make the functions known in this process, which composes configurations or resolves those of another."""
    for name, resolver in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
