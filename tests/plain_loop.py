"""What a plain loop over deep copies of a model does: the reference for models of others.

Nothing of simsgd computes here but the key of each worker's random numbers, and the dropout that
draws from it.

Letters: W workers, b samples each, B = W * b.
"""

import copy
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from simsgd.gradients.dropout import ReplayedDropout
from simsgd.keyed_random import RandomKey
from simsgd.methods.algorithms.fedavg import FedAvg

MIXING = {  # weights [W, W] of the workers' models
    "ring": lambda workers: _ring(workers),
    "complete": lambda workers: torch.full((workers, workers), 1 / workers, dtype=torch.float64),
}


class PlainLoop:
    """W deep copies of a model, each with torch optimizers of its own.

    `algorithm` is allreduce (each steps along the mean of all gradients), dpsgd (each along its
    own, then models are mixed), local (along its own; every `local_steps` all take the mean) or
    fedavg (the same, of those drawn alone). A parameter without gradient in any copy has none in
    the mean, as in DistributedDataParallel with find_unused_parameters: torch leaves it alone.

    Around a worker's forward and backward, torch's generator is seeded with its key, which is a
    function of (seed, step, worker), and put back after.
    """

    def __init__(
        self,
        model,
        criterion=F.cross_entropy,
        *,
        workers=4,
        algorithm="allreduce",
        optimizer="SGD",
        seed=0,
        topology="ring",
        local_steps=1,
        participation=1.0,
        samples=None,
        optimizers_of=None,
        **settings,
    ):
        self.models = [copy.deepcopy(model).train() for _ in range(workers)]
        self.criteria = [copy.deepcopy(criterion) for _ in range(workers)]
        self.algorithm, self.workers, self.seed = algorithm, workers, seed
        self.topology, self.local_steps, self.samples = topology, local_steps, samples
        self.participation = participation
        self.chosen = getattr(torch.optim, optimizer), settings
        self.optimizers_of = optimizers_of  # makes a list of a model's, in place of `chosen`
        self.steps = 0
        self.begun = [p.requires_grad for p in self._every()[0]]  # what models exchange
        self.forget()

    def forget(self):
        kind, settings = self.chosen
        self.optimizers = [[kind(own, **settings)] for own in self._every()]
        if self.optimizers_of is not None:
            self.optimizers = [self.optimizers_of(model) for model in self.models]

    def step(self, x, y):
        """Train on `x` [B, ...] and `y` [B, ...]; return the losses [W], nan of who does not."""
        keys = (
            RandomKey(self.seed, torch.arange(self.workers))
            .fold_in(self.steps, "dropout", 0)
            .keys()
        )
        losses = torch.full((self.workers,), torch.nan, dtype=torch.float64)
        trains = self.drawn()
        xs, ys = _parts(x, self.workers), _parts(y, self.workers)
        for w in range(self.workers):
            for optimizer in self.optimizers[w]:
                optimizer.zero_grad(set_to_none=True)
            if trains[w]:
                with seeded(int(keys[w])), ReplayedDropout(keys[w]):
                    loss = self.criteria[w](self.models[w](xs[w]), ys[w])
                    edge = torch.autograd.graph.get_gradient_edge(loss)  # keeps dropout keyed
                    torch.autograd.backward(edge, torch.ones_like(loss))
                losses[w] = loss.detach()
        if self.algorithm == "allreduce":
            self.average_gradients()
        for w in (w for w in range(self.workers) if trains[w]):
            for optimizer in self.optimizers[w]:
                optimizer.step()
        self.agree(trains)
        self.steps += 1
        return losses

    def drawn(self):
        """Return which workers train, [W] bool."""
        if self.algorithm != "fedavg":
            return [True] * self.workers
        method = FedAvg(local_steps=self.local_steps, participation=self.participation)
        return method.participants(self.seed, self.workers, self.steps, 0).tolist()

    @torch.no_grad()
    def average_gradients(self):
        for own in self.rows():
            found = [p.grad for p in own if p.grad is not None]
            mean = sum(g.to_dense() for g in found) / self.workers if found else None
            for p in own:
                p.grad = None if mean is None else mean.clone()

    @torch.no_grad()
    def agree(self, trains):
        """Let the copies agree on a model, if the algorithm does so after this step."""
        if self.algorithm == "dpsgd":
            weights = MIXING[self.topology](self.workers)
            for own in self.rows(only_trained=True):
                mixed = torch.tensordot(weights.to(own[0].dtype), torch.stack([*own]), 1)
                for p, value in zip(own, mixed, strict=True):
                    p.copy_(value)
        elif self.algorithm in ("local", "fedavg") and (self.steps + 1) % self.local_steps == 0:
            held = torch.ones(self.workers) if self.samples is None else self.samples
            weights = held.double() * torch.tensor(trains)
            for own in self.rows(only_trained=True):
                mean = torch.tensordot(
                    (weights / weights.sum()).to(own[0].dtype), torch.stack([*own]), 1
                )
                for p in own:
                    p.copy_(mean)
            if self.algorithm == "fedavg":
                self.forget()

    def rows(self, only_trained=False):
        """Return the copies of each parameter, a tuple of W; or of those trained at the start."""
        every = zip(self.begun, zip(*self._every(), strict=True), strict=True)
        return [own for trained, own in every if trained or not only_trained]

    def _every(self):
        pairs = zip(self.models, self.criteria, strict=True)
        return [[*model.parameters(), *_parameters(criterion)] for model, criterion in pairs]

    def parameters(self):
        """Return what is trained, {name: [W, *shape]}."""
        named = [dict(model.named_parameters()) for model in self.models]
        return {
            name: torch.stack([own[name].detach() for own in named])
            for trained, name in zip(self.begun, named[0], strict=False)
            if trained
        }

    def buffers(self):
        """Return the buffers, {name: [W, *shape]}."""
        named = [dict(model.named_buffers()) for model in self.models]
        return {name: torch.stack([own[name].detach() for own in named]) for name in named[0]}


@contextmanager
def seeded(key):
    """Set torch's generator to a key, and put it back after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def _parts(batch, workers):
    if isinstance(batch, dict):
        parts = {name: _parts(value, workers) for name, value in batch.items()}
        return [{name: own[w] for name, own in parts.items()} for w in range(workers)]
    return batch.unflatten(0, (workers, -1)).unbind()


def _parameters(criterion):
    return criterion.parameters() if isinstance(criterion, torch.nn.Module) else ()


def _ring(workers):
    weights = torch.zeros(workers, workers, dtype=torch.float64)
    for w in range(workers):
        for other in (w - 1, w, w + 1):
            weights[w, other % workers] += 1 / 3
    return weights
