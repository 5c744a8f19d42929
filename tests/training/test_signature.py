import dataclasses
import inspect

import simsgd
from simsgd.config import Config


def test_completion_shows_every_setting_with_its_type_and_default():
    shown = inspect.signature(simsgd.train).parameters
    fields = {f.name: f for f in dataclasses.fields(Config)}
    assert [*shown] == [*fields]
    assert all(shown[name].default == f.default for name, f in fields.items())
    assert shown["workers"].annotation is int
    assert all(each.kind is each.KEYWORD_ONLY for each in shown.values())


def test_help_has_the_text_of_every_setting():
    text = inspect.getdoc(simsgd.train)
    assert text.startswith("Simulate the training")
    assert all(f"    {f.name}: {f.metadata['help']}" in text for f in dataclasses.fields(Config))
