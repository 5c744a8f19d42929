"""Gives each rank of this machine a link of its own rate: Linux network namespaces, as root.

A namespace with a bridge stands for a switch; each rank has one beside it, joined to the switch by
a pair of virtual interfaces. Token buckets (tc-htb(8)) hold what enters and what leaves a rank to
the rate. No namespace has a name: each lives as long as a process in it, and that ends when its
standard input is closed, which the system does however this process ends.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..results.network import bits_a_second
from ..settings import SettingError, require

INTERFACE = "eth0"  # of a rank, in its namespace
_NET = 0x40000000  # CLONE_NEWNET of <sched.h>
_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_MOST = 250  # ranks that the addresses of one switch are enough for
_BURST_SECONDS = 0.5e-3  # of the rate that a bucket holds ready
_LEAST_BURST = 3200  # bytes: two frames
_LARGEST_PACKET = 65536  # bytes that TCP hands over at once, to be cut into frames
_QUEUE = 4 << 20  # bytes of data that wait before a link until some are dropped
_SHORT = "u16 0 0xff80 at 2"  # packets of less than 128 bytes, by the header of IP
_TCP = (  # no probing for a rate that is known, no slow start after each step's computation
    "echo reno > tcp_congestion_control && echo 0 > tcp_slow_start_after_idle && "
    "echo 4096 6000000 33554432 > tcp_rmem"
)


@contextmanager
def shaped_links(link: str, ranks: int) -> Iterator[list[int]]:
    """Yield for each rank the id of a process whose network namespace it is to enter.

    `link` is the rate in each direction, such as 100Mbit. Raises `SettingError` where such links
    cannot be made.
    """
    rate = checked_rate(link)
    require(ranks <= _MOST, "workers", ranks, f"must be at most {_MOST} with a link")
    with ExitStack() as stack:
        switch, *own = (stack.enter_context(_namespace(link)) for _ in range(ranks + 1))
        _run(link, switch, ["ip", "link", "add", "switch", "type", "bridge"])
        _run(link, switch, ["ip", "link", "set", "switch", "up"])
        for rank, namespace in enumerate(own):
            _connect(link, rate, switch, namespace, rank)
        yield own


def enter(namespace: int) -> None:
    """Have what this thread connects from now on go through the namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{namespace}/ns/net") as opened:
        if libc.setns(opened.fileno(), _NET):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def checked_rate(link: str) -> float:
    """Return the bits a second of a link that can be made here.

    Raises `SettingError` for one that is no rate, and where the system lacks what it needs.
    """
    rate = bits_a_second(link)
    require(sys.platform == "linux", "link", link, "needs Linux: it uses network namespaces")
    for program, package in _PROGRAMS.items():
        found = shutil.which(program) is not None
        require(found, "link", link, f"needs the program {program}", f"install {package}")
    rule = "needs root, who alone may make network namespaces"
    require(os.geteuid() == 0, "link", link, rule)
    return rate


@contextmanager
def _namespace(link: str) -> Iterator[int]:
    """Yield the id of a process in a network namespace of its own."""
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if not process.stdout.readline():
            raise _refused(link, process.stderr.read())
        yield process.pid


def _connect(link: str, rate: float, switch: int, namespace: int, rank: int) -> None:
    """Join a rank's namespace to the switch, both ways at a rate."""
    port = f"port{rank}"
    pair = ["type", "veth", "peer", "name", INTERFACE, "netns", str(namespace)]
    _run(link, switch, ["ip", "link", "add", port, *pair])
    _run(link, switch, ["ip", "link", "set", port, "master", "switch", "up"])
    _run(link, namespace, ["ip", "addr", "add", f"10.99.0.{rank + 1}/24", "dev", INTERFACE])
    _run(link, namespace, ["ip", "link", "set", INTERFACE, "up"])
    _run(link, namespace, ["sh", "-c", f"cd /proc/sys/net/ipv4 && {_TCP}"])
    burst = max(_LEAST_BURST, int(rate / 8 * _BURST_SECONDS))
    packet = min(_LARGEST_PACKET, int(0.9 * burst))  # a larger one would be cut again
    _run(link, namespace, ["ip", "link", "set", INTERFACE, "gso_max_size", str(packet)])
    for where, interface in ((switch, port), (namespace, INTERFACE)):
        for command in _held_to(rate, burst, interface):
            _run(link, where, ["tc", *command.split()])


def _held_to(rate: float, burst: int, interface: str) -> list[str]:
    """Return the commands of tc that hold an interface to `rate` bits a second.

    Short packets, which are mostly acknowledgments, go before data, as in a fair queue (fq_codel):
    behind data they would hold up the data of the other direction. Each class of packets borrows
    what the other leaves.
    """
    on, held = f"dev {interface}", f"ceil {rate:.0f}bit burst {burst} cburst {burst} quantum 1514"
    return [
        f"qdisc add {on} root handle 1: htb default 20",
        f"class add {on} parent 1: classid 1:1 htb rate {rate:.0f}bit {held}",
        f"class add {on} parent 1:1 classid 1:10 htb rate {0.1 * rate:.0f}bit {held} prio 0",
        f"class add {on} parent 1:1 classid 1:20 htb rate {0.9 * rate:.0f}bit {held} prio 1",
        f"qdisc add {on} parent 1:20 bfifo limit {_QUEUE}",
        f"filter add {on} parent 1: protocol ip u32 match {_SHORT} flowid 1:10",
    ]


def _run(link: str, namespace: int, command: list[str]) -> None:
    """Run a command in the network namespace of a process."""
    inside = ["nsenter", f"--net=/proc/{namespace}/ns/net", *command]
    ended = subprocess.run(inside, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise _refused(link, ended.stderr)


def _refused(link: str, reason: str) -> SettingError:
    first = (reason.strip().splitlines() or ["no reason given"])[0]
    return SettingError("link", link, f"cannot be made on this system ({first})")
