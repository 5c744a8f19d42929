"""Starts the runs of a sweep: in processes of this machine, or as jobs of a cluster."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ...settings import SettingError, one_line, require, require_kind, unknown
from ...units import literal
from ..command_line import train_command
from ..signals import StopRequest
from .process_pool import Ending, Processes, child_environment, last_line

_EXTRA = "it comes with: pip install 'simsgd[cluster]'"
_MOST_JOBS = 256
_MINUTES = 240  # that a job of submitit may take, unless told otherwise


class Job(Protocol):
    """A run that was started."""

    def ended(self) -> Ending | None:
        """Return how it ended, or None while it goes on."""

    def stop(self) -> None:
        """Ask it to save and stop."""

    def wait(self) -> None:
        """Wait until it has."""


class Launcher(Protocol):
    """Starts runs."""

    jobs: int  # at a time

    def check(self, settings: Mapping[str, object], request: StopRequest) -> SettingError | None:
        """Return what is wrong with a combination; None for nothing, and once it is to stop."""

    def start(self, settings: Mapping[str, object]) -> Job:
        """Start a run with these settings of `Config`, and return at once."""

    def close(self) -> None:
        """Let go of what was needed."""


def launcher_of(name: str | None, jobs: int | None, folder: Path) -> Launcher:
    """Return what starts runs: this machine's processes, or `local` or `slurm` through submitit.

    `slurm:partition=gpu,timeout_min=60` has settings of submitit's executor. Raises `SettingError`
    for an unknown name, or if submitit is not installed.
    """
    require_kind("launcher", name, str, type(None))
    require_kind("jobs", jobs, int, type(None))
    require(jobs is None or jobs >= 1, "jobs", jobs, "must be at least 1")
    if name is None:
        rule = f"must be at most {_MOST_JOBS} on this machine"
        require(jobs is None or jobs <= _MOST_JOBS, "jobs", jobs, rule)
        return Processes(jobs or 1)
    kind, _, words = name.partition(":")
    if kind not in ("local", "slurm"):
        raise unknown("launcher", kind, ["local", "slurm"])
    return Submitted(kind, words, jobs or sys.maxsize, folder)


class Submitted:
    """Runs as jobs of submitit: of this machine (`local`, to try it) or of a Slurm cluster."""

    def __init__(self, kind: str, words: str, jobs: int, folder: Path) -> None:
        try:
            import submitit
        except ImportError as missing:
            rule = "needs submitit, which is not installed"
            raise SettingError("launcher", kind, rule, _EXTRA) from missing
        self.jobs, self.kind = jobs, kind
        self.checks = Processes(1)
        try:
            self.executor = submitit.AutoExecutor(folder / ".submitit", cluster=kind)
            settings = {"timeout_min": _MINUTES, **_parameters(kind, words)}
            self.executor.update_parameters(**settings)
        except (RuntimeError, NameError, TypeError, ValueError) as wrong:
            rule = f"cannot be used: {one_line(wrong)}"
            raise SettingError("launcher", kind, rule) from wrong

    def check(self, settings: Mapping[str, object], request: StopRequest) -> SettingError | None:
        """Return what is wrong with a combination, which this machine makes, on its CPU if need be.

        A cluster's jobs may have devices that it lacks.
        """
        return self.checks.check(settings, request, on_cpu=self.kind != "local")

    def start(self, settings: Mapping[str, object]) -> Job:
        """Submit a run."""
        return SubmittedJob(self.executor.submit(run_command, train_command(settings)))

    def close(self) -> None:
        """Let the checks end; jobs are the cluster's."""
        self.checks.close()


class ClusterJob(Protocol):
    """A job of submitit's, as far as it is used here."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def result(self) -> tuple[int, str]:
        """Return what `run_command` returned."""

    def cancel(self) -> None:
        """Ask the cluster to end it."""


class SubmittedJob:
    """A run that was submitted."""

    def __init__(self, job: ClusterJob) -> None:
        self.job = job

    def ended(self) -> Ending | None:
        """Return how it ended, or None while it waits or goes on."""
        if not self.job.done():
            return None
        try:
            code, reason = self.job.result()
        except Exception as wrong:  # whatever a cluster says of a job that it lost
            return Ending(1, str(wrong).strip().rpartition("\n")[2] or type(wrong).__name__)
        return Ending(code, reason)

    def stop(self) -> None:
        """Ask for it to be cancelled; it goes on from its last checkpoint."""
        self.job.cancel()

    def wait(self) -> None:
        """Do nothing: the cluster stops it in its own time."""


def run_command(command: list[str]) -> tuple[int, str]:
    """Run `simsgd` with these words; return its exit code and its last line on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "simsgd", *command],
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, last_line(done.stderr.decode(errors="replace"), done.returncode)


def _parameters(kind: str, words: str) -> dict[str, object]:
    pairs = [word.partition("=") for word in filter(None, words.split(","))]
    for key, equals, _ in pairs:
        rule = f"must read {kind}:key=value,key=value"
        require(bool(key and equals), "launcher", f"{kind}:{words}", rule)
    return {key.strip(): literal(value.strip()) for key, _, value in pairs}
