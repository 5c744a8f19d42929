"""What docs/methods.md says of the methods is so."""

import re
from pathlib import Path

from simsgd.recipe import Recipe
from simsgd.registry import names
from simsgd.simulator.step_bytes import sizes

TEXT = (Path(__file__).parents[1] / "docs" / "methods.md").read_text()
ROWS = {line.split("|")[1].strip(" `"): line for line in TEXT.splitlines() if line[:3] == "| `"}


def bytes_of(method, shape, **settings):
    return f"{sizes({'weight': shape}, method=method, **settings).payload_bytes:,} B"


def test_every_method_has_a_row_with_its_paper():
    assert set(ROWS) == set(names("preset"))
    assert all("](https://" in row for row in ROWS.values())


def test_the_bytes_of_the_examples_are_counted():
    assert bytes_of("sparseloco", (128, 256)) in ROWS["sparseloco"]
    assert bytes_of("demo", (128, 256)) in ROWS["demo"]
    assert bytes_of("demo", (128, 256), index_dtype="int64") in ROWS["demo"]
    assert bytes_of("demo", (128,), index_dtype="int64") in ROWS["demo"]
    assert bytes_of("dion", (128, 256)) in ROWS["dion"]
    assert bytes_of("dion2", (128, 256)) in ROWS["dion2"]


def test_ones_own_method_is_used_as_shown(tmp_path):
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1])
    recipe = Recipe.of({"method": f"{tmp_path}/mine.py:Mine"})
    assert (recipe.algorithm, recipe.local_steps, recipe.compressor) == ("local", 8, "sign")
