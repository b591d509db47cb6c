"""Hydra composes configurations from the files of conf/ and overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from dpfbo.federated.messages import usual_norm
from dpfbo.federated.prior.statistics import Statistics
from runners.compose.conf_folder import CONF, added_folders


def by_regions(by_P: DictConfig, P: int) -> float:
    """Resolver `by_regions`: the entry for P sub-regions, else the default."""
    return by_P.get(P, by_P.default)


def statistics_norm(n_init: int, scalar_weight: float) -> float:
    """Resolver `statistics_norm`: the norm that few messages of a private prior exceed, in units of the scale."""
    return Statistics(scalar_weight=scalar_weight).usual_norm(n_init)


OmegaConf.register_new_resolver("by_regions", by_regions, replace=True)
OmegaConf.register_new_resolver("statistics_norm", statistics_norm, replace=True)
OmegaConf.register_new_resolver("draw_norm", usual_norm, replace=True)


class AddedFolders(SearchPathPlugin):
    """Hydra looks for options in the added folders, too, after conf/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in added_folders():
            search_path.append("dpfbo", f"file://{folder}")


Plugins.instance().register(AddedFolders)


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
