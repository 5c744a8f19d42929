"""What docs/models.md says of the models is so."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from simsgd import catalog
from simsgd.config import Config
from simsgd.training.data import about
from simsgd.training.schedule import schedule_of

from . import toy

TEXT = (Path(__file__).parents[1] / "docs" / "models.md").read_text()
ROWS = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in TEXT.split("## What is there")[1].split("## Data")[0].splitlines()
    if line.startswith("| `")
]


def made(row: list[str]) -> tuple[Any, Any]:
    """Return the module of a row's model, and the network."""
    name, settings, shape, classes = row[:4]
    module = catalog.load("models", name)
    config = catalog.parse_config(settings)
    with torch.device("meta"):
        network = catalog.build_model(
            module, config, int(classes), tuple(int(side) for side in shape.split("x"))
        )
    return module, network


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(filter(None, row[:3])))
def test_a_row_has_the_models_parameters_and_recipe(row: list[str]) -> None:
    module, network = made(row)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    batch = catalog.attribute(module, network, "batch", 128)
    schedule = schedule_of(Config(workers=1, batch_size=batch), module, network, batches=100)
    settings = [schedule.regime.at(epoch, 100 * epoch) for epoch in range(schedule.epochs)]
    assert [f"{parameters:,}", str(schedule.epochs), str(batch)] == row[4:7]
    assert max(each["lr"] for each in settings) == pytest.approx(float(row[7]))


def test_every_model_of_images_has_a_row() -> None:
    names = set(catalog.names("models")) - toy.OF_TEXT
    assert {row[0] for row in ROWS} == names


def test_every_data_set_of_samples_is_named() -> None:
    named = set(re.findall(r"`([\w:-]+)`", TEXT.split("## Data")[1]))
    assert set(about()) - {"pydoc", "ptb", "wikitext2", "text:PATH"} <= named
