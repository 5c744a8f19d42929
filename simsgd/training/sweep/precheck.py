"""Checks combinations of settings before the first of them runs."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence

from ...config import Config
from ...settings import SettingError
from .process_pool import child_environment

_CODE = "from simsgd.training.sweep.precheck import main; main()"
_MARK = "rehearsed "  # of our lines, among whatever a user's own files print


def refusals(
    points: Sequence[Mapping[str, object]], on_cpu: bool = False
) -> Generator[SettingError | None, None, None]:
    """Yield what is wrong with each combination, None for nothing.

    A process of its own makes each experiment, short of its folder, so that nothing of them stays
    in this one. `on_cpu` makes them on the CPU, where the device they will have is elsewhere.
    """
    asked = json.dumps({"points": list(points), "on_cpu": on_cpu}, default=str)
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the sweep to hear
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(asked)
        process.stdin.close()
        for line in process.stdout:
            if line.startswith(_MARK):
                told = json.loads(line.removeprefix(_MARK))
                yield SettingError(*told) if told else None
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def refusal(point: Mapping[str, object], on_cpu: bool = False) -> SettingError | None:
    """Return what is wrong with a combination; errors that no setting made are the run's to tell.

    It takes the time and memory of making the experiment here.
    """
    from ..experiment import Experiment

    with contextlib.suppress(Exception):
        try:
            config = Config.of(point)
            Experiment.of(dataclasses.replace(config, device="cpu") if on_cpu else config)
        except SettingError as error:
            return error
    return None


def main() -> None:
    """Read combinations from stdin and write what is wrong with each, a line each."""
    asked = json.load(sys.stdin)
    for point in asked["points"]:
        error = refusal(point, asked["on_cpu"])
        parts = [error.name, error.value, error.rule, error.fix] if error else None
        try:
            print(_MARK + json.dumps(parts, default=str), flush=True)
        except BrokenPipeError:  # the sweep is gone
            os._exit(1)
