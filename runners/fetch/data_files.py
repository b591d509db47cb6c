"""The files that `python -m runners.fetch` knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One file that can be fetched.

    path: relative to the data folder. sha256, bytes: hex digest and size (None: unknown) of the download.
    member: the file to unpack if the download is a tar.bz2 archive, else None.
    """

    name: str
    path: str
    url: str
    sha256: str
    bytes: int | None
    description: str
    licence: str
    member: str | None = None


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
)  # fmt: skip
DATA_FILES = {file.name: file for file in _FILES}
