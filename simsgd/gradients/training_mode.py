"""Which modules of a model train, and which evaluate."""

from torch import nn


def modes(model: nn.Module) -> tuple[bool, ...]:
    """Return of each module whether it trains."""
    return tuple(module.training for module in model.modules())


class TrainingMode:
    """Lets a model train, but for the modules that were set to evaluate by themselves.

    So batch normalization is frozen. A model that evaluates as a whole is to train: what was set
    before is set again.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._evaluating: list[nn.Module] = []

    @property
    def evaluating(self) -> frozenset[str]:
        """The names of the modules that evaluate while the model trains."""
        named = {id(module): name for name, module in self.model.named_modules()}
        return frozenset(named[id(module)] for module in self._evaluating)

    def enter(self) -> None:
        """Let the model train."""
        if self.model.training:
            self._evaluating = [module for module in self.model.modules() if not module.training]
            return
        self.model.train()
        for module in self._evaluating:
            module.training = False
