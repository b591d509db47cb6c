"""The packages of the wheel: pyproject.toml cannot say that the folder conf/ is installed as runners/conf/."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["dpfbo*", "runners*", "analysis*"]), "runners.conf"],
    package_dir={"runners.conf": "conf"},
)
