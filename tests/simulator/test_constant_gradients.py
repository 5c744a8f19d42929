"""A model whose gradient is known and stays the same shows what steps draw, clip and keep."""

import pytest
import torch
from torch import Tensor, nn

from simsgd import Simulator

W, N = 4, 400


class Sum(nn.Module):
    """The sum of its parameters' products with the input: the gradient is the input, always."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(N, dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros(N, dtype=torch.float64))
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x * self.first).sum(-1) + self.dropout(x * self.second).sum(-1)


def mean(output: Tensor, y: Tensor) -> Tensor:
    return output.mean()


def changes(x: Tensor, steps: int, dropout: float = 0.0, **settings: object) -> list[Tensor]:
    """Return what each step takes from the parameters, [2, N] or [2, W, N] each, at lr 1."""
    simulator = Simulator(Sum(dropout), mean, workers=W, lr=1.0, **settings)
    before, moves = torch.stack([*simulator.parameters().values()]).clone(), []
    for _ in range(steps):
        simulator.step(x, torch.zeros(len(x)))
        after = torch.stack([*simulator.parameters().values()]).clone()
        moves.append(before - after)
        before = after
    return moves


same = torch.linspace(0.1, 1, N, dtype=torch.float64).expand(W, N)


@pytest.mark.parametrize("compressor", ["terngrad", "qsgd:3", "natural", "randomk:0.5"])
def test_a_compressor_draws_otherwise_at_each_step_and_for_each_segment(compressor):
    first, second = changes(same, 2, compressor=compressor, memory="none", compress_if="all")
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_workers_that_share_a_model_clip_by_the_root_of_their_number():
    (change,) = changes(same, 1, clip=1.0)
    assert change.norm().item() == pytest.approx(1 / W**0.5, rel=1e-12)


@pytest.mark.parametrize(
    "algorithm", ["local:10", "fedavg:10,participation=1", "diloco:10", "dpsgd", "deepsqueeze"]
)
def test_workers_with_models_of_their_own_clip_to_the_norm_itself(algorithm):
    (change,) = changes(same, 1, clip=1.0, algorithm=algorithm)
    norms = change.transpose(0, 1).flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-12, atol=0)


def test_clients_begin_each_round_with_new_momentum():
    moves = changes(torch.ones(W, N), 4, algorithm="fedavg:2,participation=1", momentum=0.5)
    assert [move.mean().item() for move in moves] == [1.0, 1.5, 1.0, 1.5]


def test_workers_of_local_sgd_keep_their_momentum():
    moves = changes(torch.ones(W, N), 4, algorithm="local", local_steps=2, momentum=0.5)
    assert [move.mean().item() for move in moves] == [1.0, 1.5, 1.75, 1.875]


def test_each_accumulated_pass_has_a_dropout_mask_of_its_own():
    (change,) = changes(torch.ones(2 * W, N), 1, dropout=0.5, accumulate=2, algorithm="local:10")
    assert set(change.unique().tolist()) == {0.0, 1.0, 2.0}
