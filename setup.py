"""The packages: pyproject.toml cannot say that the folder conf/ is runners/conf/ in a wheel and stays in a checkout."""

from setuptools import find_packages, setup
from setuptools.command.editable_wheel import editable_wheel


class EditableCheckout(editable_wheel):
    """Add the checkout to Python's path by a plain .pth file, which type checkers and editors read, unlike a hook."""

    def finalize_options(self) -> None:
        """Leave every package in its place, also conf/: setuptools then needs no import hook."""
        self.distribution.packages.remove("runners.conf")
        self.distribution.package_dir = {"": "."}
        super().finalize_options()


setup(
    packages=[*find_packages(include=["dpfbo*", "runners*", "analysis*"], exclude=["runners.bench"]), "runners.conf"],
    package_dir={"runners.conf": "conf"},
    cmdclass={"editable_wheel": EditableCheckout},
)
