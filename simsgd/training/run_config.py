"""Resolves the settings of a run: as given, or as the run has them that is resumed."""

import dataclasses
from collections.abc import Mapping

from ..config import Config
from ..given_object import NAMES, GivenObject
from ..results.config_values import ON_RESUME, in_full
from ..results.folder_of_runs import require_run
from ..results.run import Run
from ..settings import SettingError, require
from ..units import counted
from .command_line import refuse_of_command_line
from .declared import found_in_file
from .ranks import restarted_folder
from .run_folder import MODELS


def run_config(given: Mapping[str, object]) -> Config:
    """Return the settings of the run that the `given` ones ask for.

    Raises `SettingError` for one that is wrong, or that a resumed run cannot change.
    """
    refuse_of_command_line(given)
    asked = Config.of(given)
    restarted = restarted_folder(asked)
    if restarted is not None and asked.resume is None:
        asked = dataclasses.replace(asked, resume=restarted, overwrite=False)
        given = {**given, "overwrite": False}
    if asked.resume is None:
        return asked
    folder = asked.resume.parent if asked.resume.name == "last.pt" else asked.resume
    if folder.suffix == ".pt":
        rule, inside = "is not where the run stopped", folder.parent
        whole = inside.parent if inside.name == MODELS else inside
        raise SettingError("resume", str(folder), rule, f"give the folder, {whole}")
    require_run(folder, "resume")
    if Run(folder).config.get("recorded"):
        rule = "holds a loop of one's own, which simsgd cannot start"
        fix = "start the loop again, with simsgd.recording(..., resume=True)"
        raise SettingError("resume", str(folder), rule, fix)
    known = Run(folder).config
    try:
        own = dataclasses.replace(Config.from_plain(known), overwrite=False)
    except SettingError as wrong:
        raise found_in_file(wrong, "resume", str(folder / "config.json")) from wrong
    for name in sorted(given.keys() - ON_RESUME):
        before, now = getattr(own, name), getattr(asked, name)
        rule = f"cannot change on resume, the run has {in_full(before)}"
        require(now == before, name, in_full(now), rule)
    ended = len(Run(folder).epochs)
    if asked.epochs is not None and asked.epochs < ended:
        rule = f"must be at least the {counted(ended, 'epoch')} that the run has done"
        raise SettingError("epochs", asked.epochs, rule)
    if asked.steps is not None:
        steps = Run(folder).step_columns()["step"]
        done = int(steps.iloc[-1]) if len(steps) else 0
        rule = f"must be at least the {counted(done, 'step')} that the run has done"
        require(asked.steps >= done, "steps", asked.steps, rule)
    if asked.until_bytes is not None and ended:
        sent = int(Run(folder).last.payload_bytes)
        rule = f"must be at least the {sent:,} bytes that each worker has sent"
        require(int(asked.until_bytes) >= sent, "until_bytes", asked.until_bytes, rule)
    again = [name for name in NAMES if isinstance(getattr(asked, name), GivenObject)]
    changed = {name: getattr(asked, name) for name in {*again, *(given.keys() & ON_RESUME)}}
    if asked.epochs is not None:
        changed["steps"] = None
    if asked.steps is not None or (own.steps is not None and asked.epochs is None):
        changed["epochs"] = None  # they follow from the steps
    return dataclasses.replace(own, **{**changed, "resume": folder})
