"""Paths as options and arguments take them: an empty one is not the working directory."""

import os
from pathlib import Path
from typing import Any

import click

from ..settings import SettingError
from ..units import home_path


class FilePath(click.Path):
    """A path that is not empty; a ~ at its beginning is the user's folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a text. Raises `SettingError` for an empty one."""
        if value == "":
            name = "path" if param is None else str(param.name)
            raise SettingError(name, value, "must not be empty")
        return super().convert(home_path(os.fspath(value)), param, ctx)


PATH = FilePath(path_type=Path)
