"""What methods of a user's own keep is their own, and what they change they change in place."""

import pytest
import torch

from simsgd.methods import Dense, Exchanged, OuterOptimizer, ParameterAlgorithm, Sparse

from .own_kinds import keeper, made, refused, sender, stepped


def _whole(self, x, state, step):
    return Dense.of(x)


def _parameters(self, x, context, state):
    return Exchanged.of(x, context.compress(x))


KEPT = {
    "compressor": sender(_whole, init=lambda self, like: {"e": like}),
    "memory": keeper(init=lambda self, like, dense: {"e": like}),
    "algorithm": made(
        ParameterAlgorithm,
        init=lambda self, x, segment: {"anchor": x},
        parameters=_parameters,
    ),
}


@pytest.mark.parametrize(("kind", "method"), KEPT.items())
def test_a_state_that_is_what_init_was_handed_is_refused(kind, method):
    refused("is a view of what init was handed.*return a tensor of its own", **{kind: method})


def test_a_state_of_a_part_or_of_a_server_is_looked_at_too(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from simsgd.methods import Compressor, Sparse\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Compressor):\n"
        "  biased = True\n"
        "  def init(self, like): return {'e': like}\n"
        "  def compress(self, x, state, step):\n"
        "    return Sparse.of(x[:, :1], step.key.workers.new_zeros(len(x), 1), x.shape[1])\n"
    )
    spec = f"{tmp_path / 'mine.py'}:Mine"
    refused("is a view of what init was handed", compressor=f"{spec}+sign")
    refused("downlink has a state 'e' that is a view", algorithm="allreduce", downlink=spec)


def test_a_state_whose_rows_share_their_memory_is_refused():
    own = sender(_whole, init=lambda self, like: {"e": torch.zeros(1, 1).expand(like.shape)})
    refused("whose entries share their memory, as of expand", compressor=own)


def _outer(**body):
    given = {"step": lambda self, anchor, gradient, state: anchor.sub_(gradient) and None, **body}
    return made(OuterOptimizer, **given)


OUTER = {
    "is a view of what init was handed": {"init": lambda self, anchor: {"m": anchor}},
    "has an init that returns no dict of tensors but a NoneType": {
        "init": lambda self, anchor: None
    },
    "has a state 'n' that is no tensor": {"init": lambda self, anchor: {"n": 0}},
    "has a state 'anchor', the name of the model": {
        "init": lambda self, anchor: {"anchor": torch.zeros_like(anchor)}
    },
    "has a step that returns a Tensor, where anchor is to change": {
        "step": lambda self, anchor, gradient, state: anchor - gradient
    },
}


@pytest.mark.parametrize(("message", "body"), OUTER.items(), ids=OUTER)
def test_a_wrong_outer_optimizer_is_refused(message, body):
    settings = {"algorithm": "diloco:local_steps=1", "outer_optimizer": _outer(**body)}
    refused(message, **settings)


def _counted(counts, place=2):
    """Return a compressor of the first three of six entries, or fewer."""

    def compress(self, x, state, step):
        k = min(3, x.shape[1])
        index = torch.arange(k).repeat(len(x), 1)
        index[:, place:] = x.shape[1]
        given = counts(len(x)) if callable(counts) else counts
        return Sparse.of(x[:, :k].clone(), index, x.shape[1], given)

    return sender(compress)


COUNTS = {
    "has counts outside": lambda rows: torch.full((rows,), 9),
    "has int as counts": 1,
    "as counts, got Mine; give the entries of each row": torch.tensor(1),
    "has counts in torch.float32, got Mine; make them int64": lambda rows: torch.ones(rows),
    "has entries beyond its counts": lambda rows: torch.ones(rows, dtype=torch.int64),
}


@pytest.mark.parametrize(("message", "counts"), COUNTS.items(), ids=COUNTS)
def test_wrong_counts_are_refused(message, counts):
    refused(message, compressor=_counted(counts))


def test_counts_below_0_are_refused():
    own = _counted(lambda rows: torch.full((rows,), -1))
    refused("has counts outside", compressor=own)


def test_right_counts_are_taken():
    own = _counted(lambda rows: torch.full((rows,), 2))
    stepped(2, compressor=own)
