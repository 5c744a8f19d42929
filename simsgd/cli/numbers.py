"""Numbers as options take them: written in one way, as in specs, without 1_0 or foreign digits."""

from typing import Any

import click
from click.types import FloatParamType, IntParamType

from ..units import is_plain_number


class _Whole(IntParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not is_plain_number(value):
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        whole: int = super().convert(value, param, ctx)
        return whole


class _Real(FloatParamType):
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, str) and not is_plain_number(value):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        real: float = super().convert(value, param, ctx)
        return real


WHOLE, REAL = _Whole(), _Real()
