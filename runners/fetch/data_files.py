"""The data files that `python -m runners.fetch` can download."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urljoin

from pandas import DataFrame

from runners.fetch import tables

_RAW = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class DataFile:
    """One file that can be fetched.

    path: relative to the data folder. sha256, bytes: hex digest and size (None: unknown) of the download. member: the
    file to unpack if the download is a tar.bz2 archive. make: a function of the paths of all downloads; the table that
    it returns is stored as csv.gz. more: further downloads, each as its address (relative to url), sha256 and bytes.
    """

    name: str
    path: str
    url: str
    sha256: str
    bytes: int | None
    description: str
    licence: str
    member: str | None = None
    make: Callable[..., DataFrame] | None = None
    more: tuple[tuple[str, str, int], ...] = ()

    @property
    def downloads(self) -> tuple["DataFile", ...]:
        """This file, then one entry for each download in `more`."""
        return (self, *(replace(self, url=urljoin(self.url, u), sha256=s, bytes=n, more=()) for u, s, n in self.more))


_FILES = (
    DataFile(
        "landmine", "landmine/LandmineData.mat",
        "https://raw.githubusercontent.com/daizhongxiang/"
        "Differentially-Private-Federated-Bayesian-Optimization/main/LandmineData.mat",
        "2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea", 1_085_456,
        "landmine detection, 29 fields, 9 radar features, mine or not (Xue et al., 2007)",
        "none stated; published by Duke University for research",
    ),
    DataFile(  # the site states no checksum; many projects that downloaded the file record this one
        "har", "har/human+activity+recognition+using+smartphones.zip",
        "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031", 61_005_872,
        "human activity recognition, 30 subjects, 561 features, 6 activities (Anguita et al., 2013)",
        "CC BY 4.0; its README asks for a citation and excludes commercial use",
    ),
    DataFile(  # the archive's checksum, from TensorFlow Federated (tff.simulation.datasets.emnist, up to 2020)
        "emnist", "emnist_digits/fed_emnist_digitsonly_train.h5",
        "https://storage.googleapis.com/tff-datasets-public/fed_emnist_digitsonly.tar.bz2",
        "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b", None,
        "federated EMNIST, digits by 3383 writers, training part (Caldas et al., 2018)",
        "none stated; made from NIST Special Database 19", member="fed_emnist_digitsonly_train.h5",
    ),
    DataFile(
        "school", "school/school.mat",
        "https://raw.githubusercontent.com/jiayuzhou/MALSAR/ca3d55b878cc4113f0d9603e8ac46538aeb1ecd9/data/school.mat",
        "57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068", 44_759,
        "exam scores in 139 London schools, 28 features (Inner London Education Authority, 1985 to 1987)",
        "distributed for research and teaching; the repository GPL-2",
    ),
    DataFile(
        "homes", "property/king_county_2014_2015.csv.gz",
        f"{_RAW}/theandyb/BDSI24_LinReg/c8bdac178e866257306570cc566d591ab7d23582/data/kc_house_data.csv",
        "a558aecc8b4137f3166b61563797eacabce4296f7653fbcf465be31b48a32d2f", 1_752_398,
        "houses sold in King County, 2014 and 2015 (Kaggle), for problems homes and property",
        "CC0; the repository MIT", make=tables.homes, more=(
            ("kc_house_data_2.csv", "d4b843adf8123931d79687ba80442f7390b1024622015474025f40dd9f2cc8f1", 546_371),
            ("test_price.csv", "2a45126c0a891f38ce5ed3f5fe13b79de6be55b5ea1458f54bd9012b647c4ef5", 37_982)),
    ),
    DataFile(
        "flats", "property/singapore_hdb_resale_2023.csv.gz",
        f"{_RAW}/yanjie99/HedonicPriceModel/8f9e7525d52ebd48e226881003e2580ff740fd5b/data/hdb_data_2023.csv.xz",
        "e9194ab79f4838a0ab32c128f41405c6fe99fc37b98743ce9fa994e5ba6bdf14", 593_536,
        "resales of public housing in Singapore, 2023 (data.gov.sg), for problems flats and property",
        "Singapore Open Data Licence; the repository MIT", make=tables.flats,
    ),
    DataFile(
        "credit", "loans/lendingclub_2007_2011.csv.gz",
        f"{_RAW}/WhiskeyYankee/EDAmigo/e0b847069e628007d88ad081fc666d38ace818c4/data/finance.rda",
        "81a67600b2eccae937f6e267484c901968f7c15ed0d349af9e0393f37d4a30f0", 2_326_059,
        "loans issued by LendingClub, 2007 to 2011, for problems credit and loans",
        "none stated, published by LendingClub; the repository GPL-3 or later", make=tables.loans,
    ),
)  # fmt: skip
DATA_FILES = {file.name: file for file in _FILES}
