"""Notes for a run that ends before something that its settings ask for begins."""

from ..units import counted
from .experiment import Experiment

_EVERY = {  # settings that count steps, and what does not happen in fewer
    "flush_every": "nothing is flushed",
    "eval_every": "evaluations come at the ends of epochs alone",
    "checkpoint_every": "checkpoints come at the ends of epochs alone",
}


def length_notes(experiment: Experiment) -> list[str]:
    """Return a note for each setting that the run is too short for."""
    return [
        *_of_short_runs(experiment),
        *_of_last_steps(experiment),
        *_of_steps_to_come(experiment),
        *_of_epochs_to_come(experiment),
        *_of_old_models(experiment),
    ]


def _of_short_runs(experiment: Experiment) -> list[str]:
    config, batches = experiment.config, experiment.batches
    climbs = bool(config.prune) and config.warmup and config.warmup_epochs > 0
    if not climbs or experiment.steps > config.warmup_epochs * batches:
        return _of_phases_to_come(experiment)
    return [
        f"note: the run ends within its warm-up of {config.warmup_epochs} epochs, before prune "
        f"{config.prune:g} is reached; --no-warmup or fewer --warmup-epochs would reach it"
    ]


def _of_phases_to_come(experiment: Experiment) -> list[str]:
    """Return a note if a run of so many steps ends before phases that its regime counts in epochs.

    Epochs are passes over the data, whatever ends the run; a `schedule` knows the steps.
    """
    steps, batches = experiment.config.steps, experiment.batches
    starts = [epoch for epoch, _ in experiment.simulator.components.regime.starts]
    late = [epoch for epoch in starts if steps is not None and epoch * batches >= steps]
    if not late:
        return []
    return [
        f"note: the run ends after {(steps or 0) / batches:.4g} epochs, before the regime's phase "
        f"of epoch {late[0]}; --epochs {late[0] + 1} would reach it"
    ]


def _of_last_steps(experiment: Experiment) -> list[str]:
    """Return a note if the last steps of a run are not followed by an exchange."""
    config, algorithm = experiment.config, experiment.simulator.components.algorithm
    assert config.epochs is not None
    steps = experiment.steps
    last = algorithm.round_of(config.seed, config.workers, max(0, steps - 1), config.epochs - 1)
    left = steps - last.begin
    if steps in (0, last.end) or config.final_exchange:
        return []
    if last.begin == 0:
        rounds = f"as the run ends after {steps} of the first round's {counted(last.steps, 'step')}"
        return [
            f"note: the workers never exchange anything, {rounds}; --final-exchange does it once"
        ]
    after = f"the last {left} steps are" if left > 1 else "the last step is"
    why = f"for {last.steps} does not divide {steps} steps"
    if algorithm.local_epochs is not None:
        why = f"for their round ends after step {last.end}"
    return [f"note: {after} not followed by an exchange, {why}; --final-exchange adds one"]


def _of_steps_to_come(experiment: Experiment) -> list[str]:
    """Return notes for numbers of steps that the run does not have."""
    config, algorithm = experiment.config, experiment.simulator.components.algorithm
    waits = {f"--{n.replace('_', '-')}": (getattr(config, n), why) for n, why in _EVERY.items()}
    waits["freeze_step"] = getattr(algorithm, "freeze_step", 0), "nothing is compressed"
    return [
        f"note: the run ends after {counted(experiment.steps, 'step')}, before {name} {number} is "
        f"reached: {why}"
        for name, (number, why) in waits.items()
        if number > experiment.steps > 0
    ]


def _of_epochs_to_come(experiment: Experiment) -> list[str]:
    """Return a note if steps would be local from an epoch on that the run does not have."""
    first = getattr(experiment.simulator.components.algorithm, "post_local_from", 0)
    if not 0 < experiment.steps <= first * experiment.batches:
        return []
    return [f"note: the run ends before epoch {first}, from which on steps would be local"]


def _of_old_models(experiment: Experiment) -> list[str]:
    """Return a note if workers never read a model that their gradients have led to."""
    steps, delay = experiment.steps, experiment.simulator.components.algorithm.longest_delay
    if not delay >= steps > 0:
        return []
    return [
        f"note: workers read models that are up to {counted(delay, 'step')} old, and the run has "
        f"{steps}: those who are so late never see another than the first; lower --staleness"
    ]
