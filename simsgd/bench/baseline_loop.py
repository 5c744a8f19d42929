"""Deep gradient compression in plain loops, worker after worker and tensor by tensor.

One backward for each worker, then Python loops over the tensors of its gradient, a dense mask for
what is sent, and a sum into the mean. This is what a step is timed against, and nothing else uses
it.

Letters: W workers, b samples each, k kept of n elements of one tensor.
"""

import torch
from torch import Tensor

from ..settings import count
from .cases import Task


class OlderStep:
    """A training step with memory dgc and top-k of each tensor of more than one dimension."""

    def __init__(self, task: Task, ratio: float, momentum: float = 0.9) -> None:
        self.task, self.ratio, self.momentum = task, ratio, momentum
        self.params = [p for p in task.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(self.params, lr=1e-3)
        self.u = [self._zeros() for _ in task.x]  # of each worker, momentum of each tensor
        self.v = [self._zeros() for _ in task.x]  # of each worker, what was not sent

    def __call__(self) -> None:
        """Train on the global batch."""
        mean = self._zeros()
        for w, (x, y) in enumerate(zip(self.task.x, self.task.y, strict=True)):
            self.optimizer.zero_grad()
            self.task.criterion(self.task.model(x), y).backward()
            for i, parameter in enumerate(self.params):
                if parameter.grad is not None:
                    sent = self._sent(self.u[w][i], self.v[w][i], parameter.grad)
                    mean[i] += sent / len(self.task.x)
        for parameter, grad in zip(self.params, mean, strict=True):
            parameter.grad = grad
        self.optimizer.step()

    def _sent(self, u: Tensor, v: Tensor, grad: Tensor) -> Tensor:
        """Return what one worker sends of one tensor, zeros elsewhere."""
        u.mul_(self.momentum).add_(grad)
        if grad.dim() <= 1:
            return u
        v.add_(u)
        size = v.abs().flatten()
        least = size.topk(count(self.ratio, size.numel())).values[-1]
        mask = (v.abs() >= least).to(v.dtype)
        sent = v * mask
        v.mul_(1 - mask)
        u.mul_(1 - mask)
        return sent

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(p) for p in self.params]
