"""One step of a run on a network as a timeline: what the device and the link do, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .network import Network
from .pricing import Pricing
from .run_tables import RunTables
from .step_times import PricedSteps
from .timeline import BACKWARD, Bucket, Span, duration, spans


@dataclass(frozen=True)
class StepSpans:
    """A step of a run; numbers are seconds since it began."""

    step: int
    spans: Sequence[Span]
    dense: float  # when a step ends that sends its whole gradient
    late: int = 0  # steps after which its messages are needed; 0: it waits for them

    @property
    def end(self) -> float:
        """When all of it is done, messages that travel during the next steps too."""
        return float(duration(self.spans))

    @property
    def waited(self) -> float:
        """When the next step begins."""
        if not self.late:
            return self.end
        return float(duration([span for span in self.spans if span.what != "communication"]))


def step_spans(run: RunTables, network: Network, pricing: Pricing) -> StepSpans:
    """Return the last step of a run that sends something, as its slowest worker goes through it.

    Where steps send nothing it is the last one. Raises `SettingError` as `step_times` does.
    """
    priced = PricedSteps(run, pricing)
    sending = np.flatnonzero(priced.sends)
    place = int(sending[-1]) if len(sending) else len(priced.sends) - 1
    compute = float(priced.compute[place].max())
    backward = BACKWARD * compute / priced.passes
    forward, compression = compute - backward, float(priced.compression[place])
    late = priced.waiting.late if priced.waiting else 0
    if pricing.way.kind == "buckets" and not late:
        buckets = [
            Bucket(b.ready, float(b.compression[place]), float(b.communication[place]))
            for b in priced.buckets(network)
        ]
        found = spans(forward, backward, buckets)
    else:
        inside = priced.pricing.inside(network, priced.dense_bytes, priced.compresses)
        carried = float(priced.transfers.carried(network).seconds[place] + inside.seconds[place])
        found = spans(forward, backward, [Bucket(1.0, compression, carried)])
        if pricing.way.kind == "perfect" and not late:  # the link begins with backward
            found[-1] = Span("communication", 0, forward, forward + carried)
    dense = float(priced.on(network)["dense"][place])
    return StepSpans(int(priced.steps["step"].iloc[place]), found, dense, late)
