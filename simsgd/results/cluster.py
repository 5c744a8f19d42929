"""A cluster of nodes: devices of a node add up over a fast network, and nodes are the workers.

Letters: N nodes, G devices of each.
"""

from dataclasses import dataclass

from ..recipe_rules import nodes_and_devices
from ..settings import SettingError
from .compute_times import ComputeTimes, Floats
from .network import Network


@dataclass(frozen=True)
class Cluster:
    """N nodes, each a worker of a run, whose G devices share its samples."""

    nodes: int
    devices: int  # of a node

    @classmethod
    def of(cls, spec: str) -> "Cluster":
        """Return the cluster of a spec.

        >>> Cluster.of("4x8")
        Cluster(nodes=4, devices=8)

        Raises `SettingError` for anything else.
        """
        return cls(*nodes_and_devices(spec))

    def drawn(self, law: ComputeTimes, steps: int) -> Floats:
        """Return the seconds of each step and node, [steps, N]: its slowest device's."""
        times = law.drawn(steps, self.nodes * self.devices)
        if times.shape[1] == 1:
            return times
        slowest: Floats = times.reshape(steps, self.nodes, self.devices).max(2)
        return slowest

    def check(self, workers: int, network: Network) -> None:
        """Raise `SettingError` for other workers than nodes, and for a network of one level."""
        if workers != self.nodes:
            rule = f"has {self.nodes} nodes, each a worker, and here are {workers} workers"
            fix = f"such as {workers}x{self.devices}"
            raise SettingError("cluster", f"{self.nodes}x{self.devices}", rule, fix)
        if network.within is None:
            rule = "is one network, and a cluster has one within nodes and one between them"
            between = "10gbe" if network.name == "nvlink" else network.name
            raise SettingError("network", network.name, rule, f"such as nvlink,{between}")


def check_one_level(network: Network) -> None:
    """Raise `SettingError` for a network of two levels where there is no cluster."""
    if network.within is not None:
        rule = "is two networks, and only a cluster has one within its nodes"
        fix = "give one of the two; a cluster, as 4x8, is set in train, sweep, network and advise"
        raise SettingError("network", network.name, rule, fix)
