"""What a step does in another way on another device: the plan of it.

A plan is a choice among ways that give the same numbers, so that each runs on every device: the
GPU's on a CPU is slower, and what it launches can be counted there.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Ways of a device."""

    name: str
    by_turns: bool  # samples of workers lie by turns where a model convolves
    one_call: bool  # what keeps workers apart is one call: groups, one BatchNorm, one product
    joined: bool  # gradients are put into [L, P] all at once, which takes that memory twice
    in_parts: bool  # workers go in parts whose results stay in a processor's cache
    together: bool  # segments of one kind are exchanged, and parameters stepped, in one call
    threads: bool  # threads share the workers, where that is the fastest


CPU = Plan(
    "cpu",
    by_turns=False,
    one_call=False,
    joined=False,
    in_parts=True,
    together=False,
    threads=True,
)
GPU = Plan(
    "gpu",
    by_turns=True,
    one_call=True,
    joined=True,
    in_parts=False,
    together=True,
    threads=False,
)


def plan_of(name: str, device: str) -> Plan:
    """Return the plan of a name; auto is that of the device, a type of torch's such as "cuda"."""
    if name == "auto":
        name = "cpu" if device == "cpu" else "gpu"
    return {"cpu": CPU, "gpu": GPU}[name]
