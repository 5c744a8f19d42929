import pytest
import torch
from torch import nn

from simsgd.config import Config
from simsgd.training import evaluation
from simsgd.training.evaluation import evaluate
from simsgd.training.experiment import Experiment
from simsgd.training.metrics import num_missed


def experiment():
    return Experiment.of(Config(model="mlp", model_config="hidden=8", dataset="digits"))


def test_a_miss_is_counted_with_one_and_with_five_guesses():
    output = torch.eye(7)[[0, 1, 2]] + torch.linspace(0.5, 0, 7)  # ranks 0 first, then by index
    target = torch.tensor([0, 6, 3])
    assert num_missed(output, target).tolist() == [2, 1]


def test_fewer_than_five_classes_cannot_be_missed_with_five_guesses():
    assert num_missed(torch.randn(9, 3), torch.zeros(9).long())[1] == 0


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_every_sample_counts_once_whatever_the_chunk(monkeypatch, chunk):
    whole = experiment()
    split, model = whole.dataset.val, whole.model.eval()
    images, labels = split.batch(torch.arange(len(split)))
    output = model(whole.prepared(images, "eval")).detach()
    monkeypatch.setattr(evaluation, "chunk_size", lambda shape, device: chunk)
    measured = evaluate(whole, model)
    loss = nn.functional.cross_entropy(output, labels).item()
    assert measured["loss"] == pytest.approx(loss, rel=1e-5)
    missed = int((output.argmax(1) != labels).sum())
    assert measured["error1"] == pytest.approx(100 * missed / len(split))


class TestBinaryOutput:
    @pytest.mark.parametrize("shape", [(4,), (4, 1)])
    def test_it_is_right_where_its_sign_is(self, shape):
        output = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]])
        target = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(shape)
        assert num_missed(output, target).tolist() == [2, 0]
