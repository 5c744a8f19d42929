"""Maps models/ and regimes/ of the checkout into the package; all else stands in pyproject.toml."""

from setuptools import setup

setup(package_dir={"simsgd.models": "models", "simsgd.regimes": "regimes"})
