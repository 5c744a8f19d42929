"""Maps models/ and regimes/ of the checkout into the package; all else stands in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["simsgd", "simsgd.*"]),
        "simsgd.models",
        "simsgd.regimes",
    ],
    package_dir={"simsgd.models": "models", "simsgd.regimes": "regimes"},
)
