"""Checks a combination of settings before the first of a sweep runs."""

import contextlib
import dataclasses
from collections.abc import Mapping

from ...config import Config
from ...settings import SettingError


def refusal(point: Mapping[str, object], on_cpu: bool = False) -> SettingError | None:
    """Return what is wrong with a combination; errors that no setting made are the run's to tell.

    It takes the time and memory of making the experiment here, short of its folder. `on_cpu` makes
    it on the CPU, where the device it will have is elsewhere.
    """
    from ..experiment import Experiment

    with contextlib.suppress(Exception):
        try:
            config = Config.of(point)
            Experiment.of(dataclasses.replace(config, device="cpu") if on_cpu else config)
        except SettingError as error:
            return error
    return None
