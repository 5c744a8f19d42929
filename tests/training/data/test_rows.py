"""Data sets whose samples are mappings, as those of Hugging Face's `datasets` are."""

import pytest
import torch
from torch import nn

import simsgd
from simsgd.settings import SettingError
from simsgd.training.data.own import own_dataset

RUN = {"workers": 2, "batch_size": 3, "epochs": 2, "lr": 0.1, "quiet": True}


class HuggingFace:
    """What simsgd uses of `datasets.Dataset`: rows as lists, or as tensors after with_format."""

    def __init__(self, columns, kind=None):
        self.columns, self.kind = columns, kind

    @property
    def format(self):
        return {"type": self.kind}

    def with_format(self, kind):
        return HuggingFace(self.columns, kind)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        if isinstance(index, str):
            return torch.tensor(self.columns[index])
        row = {name: column[index] for name, column in self.columns.items()}
        if self.kind != "torch":
            return row
        return {n: v if isinstance(v, str) else torch.tensor(v) for n, v in row.items()}


def real(columns):
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def columns(n=24):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0)).tolist()
    return {"x": x, "label": [i % 3 for i in range(n)]}


def tensors(n=24):
    own = columns(n)
    return torch.tensor(own["x"]), torch.tensor(own["label"])


kinds = pytest.mark.parametrize("kind", [HuggingFace, real], ids=["stand-in", "datasets"])


@pytest.mark.slow
@kinds
def test_a_run_is_the_one_with_tensors(kind, tmp_path):
    def run(train, name):
        torch.manual_seed(0)
        parts = {"train": train, "validation": train}
        return simsgd.train(
            dataset=parts, model=nn.Linear(4, 3), runs_dir=tmp_path, name=name,
            partition="sorted", **RUN,
        )  # fmt: skip

    rows, held = run(kind(columns()), "rows"), run(tensors(), "held")
    assert rows.epochs["val_loss"].tolist() == held.epochs["val_loss"].tolist()
    assert rows.partition.equals(held.partition)
    torch.manual_seed(0)
    parts = {"train": kind(columns()), "test": kind(columns())}
    again = simsgd.train(resume=rows.folder, dataset=parts, model=nn.Linear(4, 3), epochs=3)
    assert len(again.epochs) == 3


@kinds
def test_several_columns_are_a_dict(kind):
    whole = {"input_ids": [[1, 2], [3, 4]], "mask": [[1, 0], [1, 1]], "labels": [1, 0]}
    found = own_dataset("mine", (kind(whole), kind(whole)))
    (x, y) = next(found.train.batches([torch.tensor([1, 0])]))
    assert {name: value.tolist() for name, value in x.items()} == {
        "input_ids": [[3, 4], [1, 2]],
        "mask": [[1, 1], [1, 0]],
    }
    assert y.tolist() == [0, 1]
    assert (found.num_classes, found.input_shape) == (2, None)


@kinds
def test_targets_may_be_no_classes(kind):
    whole = {"x": [[1.0], [2.0]], "target": [[0.5, 1.5], [2.5, 3.5]]}
    found = own_dataset("mine", (kind(whole), kind(whole)))
    (_, y) = next(found.train.batches([torch.tensor([1])]))
    assert y.tolist() == [[2.5, 3.5]]
    assert found.train.labels is None
    assert found.num_classes == 2


@kinds
def test_text_is_refused_in_one_line(kind):
    whole = {"text": ["so", "it"], "label": [0, 1]}
    with pytest.raises(SettingError, match="has a column text of text, got mine; turn it into num"):
        own_dataset("mine", (kind(whole), kind(whole)))


def test_a_row_without_a_target_is_refused_in_one_line():
    whole = HuggingFace({"a": [1, 2], "b": [1, 2]})
    with pytest.raises(SettingError, match="has the columns a, b, and of these none is a target"):
        own_dataset("mine", (whole, whole))
