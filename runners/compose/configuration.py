"""Hydra composes configurations from the files of conf/ and overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from runners.compose.conf_folder import CONF


def by_regions(by_P: DictConfig, P: int) -> float:
    """Resolver `by_regions`: the entry for P sub-regions, else the default."""
    return by_P.get(P, by_P.default)


OmegaConf.register_new_resolver("by_regions", by_regions, replace=True)


@contextmanager
def composing() -> Iterator[None]:
    """Within this block `hydra.compose` reads conf/."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration of `runners.run` with these overrides. Raises HydraException for ones that do not compose."""
    with composing():
        return hydra.compose("config", overrides=list(overrides))
