"""OmegaConf resolvers: the functions that the files of conf/ call, such as `${draw_norm:100,2}`."""

from collections.abc import Callable

from omegaconf import OmegaConf


def _draw_norm(n_features: int, P: int) -> float:
    from dpfbo.federated.messages import usual_norm  # loads torch, which --help and --cfg job avoid

    return usual_norm(n_features, P)


_RESOLVERS: dict[str, Callable[..., float]] = {
    "by_regions": lambda by_P, P: by_P.get(P, by_P.default),  # the entry for P sub-regions, else the default
    "draw_norm": _draw_norm,
}


def register() -> None:
    """Register the resolvers in this process; call this before a configuration is composed."""
    for name, resolver in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)
