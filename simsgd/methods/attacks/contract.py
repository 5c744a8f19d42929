"""The contract of an attack.

Letters: W workers, F attackers, L hosted here, n elements of one segment.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...gradients.generators import put_back
from ...keyed_random import RandomKey, derived
from ...registry import build, contract, is_own
from ...settings import SettingError, require
from ..method_class import MethodClass
from ..own_errors import explained, refuse_shape, require_dtype

Gather = Callable[[Tensor], Tensor]  # rows [L, ...] of this process to those of all, [W, ...]


@contract("attack")
class Attack(metaclass=MethodClass):
    """Replaces the gradients of the first F workers. A frozen dataclass.

    It acts before memory and compressor, so that what attackers send has the form, and the bytes,
    of what others send.
    """

    attackers: int  # F, the workers 0 to F - 1
    knows_others: ClassVar[bool] = False  # the attackers know the gradients of the others

    def check_workers(self, workers: int) -> None:
        """Raise `SettingError` unless there are attackers, and others."""
        require(self.attackers >= 1, "attack", self.attackers, "needs at least 1 attacker")
        rule = f"leaves nobody of the {workers} workers to train"
        require(self.attackers < workers, "attack", self.attackers, rule, "name fewer attackers")

    def replace_(self, segments: Sequence[Tensor], key: RandomKey, gather: Gather) -> None:
        """Replace the attackers' rows of the gradients [L, n] of each segment, in place."""
        are_here = key.workers < self.attackers  # [L]
        if not (self.knows_others or bool(are_here.any())):
            return
        for number, gradient in enumerate(segments):
            others = gather(gradient)[self.attackers :] if self.knows_others else gradient[:0]
            sent = self._sent(gradient, others, key.fold_in("attack", number))
            gradient.copy_(torch.where(are_here.unsqueeze(1), sent, gradient))

    def _sent(self, own: Tensor, others: Tensor, key: RandomKey) -> Tensor:
        """Return what `sent` does. Raises `SettingError` if that is no tensor like `own`."""
        if not is_own(self):
            return self.sent(own, others, key)
        with explained([("attack", self)]), put_back(own.device) as generators:
            generators.seed(derived(key.seed, *key.place))
            sent: object = self.sent(own.clone(), others, key)
        if not isinstance(sent, Tensor) or sent.shape != own.shape:
            refuse_shape("attack", self, "sent", sent, tuple(own.shape))
        require_dtype("attack", self, "sent", sent, own.dtype)
        return sent

    @abstractmethod
    def sent(self, own: Tensor, others: Tensor, key: RandomKey) -> Tensor:
        """Return what each worker would send as an attacker in place of its `own` [L, n].

        `others` are the gradients of those who are none, [W - F, n], or nothing if the attackers
        do not know them.
        """


def attack_of(spec: str) -> Attack:
    """Return the attack of a spec. Raises `SettingError` for several, or an unknown one."""
    parts = build("attack", spec)
    if len(parts) != 1:
        raise SettingError("attack", spec, "must be one attack")
    attack: Attack = parts[0]
    return attack
