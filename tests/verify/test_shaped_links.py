import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from simsgd import SettingError
from simsgd.communication.transport import Measured
from simsgd.results.network import TCP_FRAMING
from simsgd.verify.launch import launch
from simsgd.verify.link_times import LinkStep, LinkTimes
from simsgd.verify.shaped_links import shaped_links
from simsgd.verify.verify import verify

from ..process_group import moved

MODEL = """
from torch import nn
regime = {0: {"lr": 0.01}}
epochs = 1
def model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.Tanh(), nn.Linear(400, num_classes))
"""


@pytest.fixture(scope="module")
def _links():
    """Skip where such links cannot be made."""
    try:
        with shaped_links("100Mbit", 1):
            pass
    except SettingError as wrong:
        pytest.skip(str(wrong))


def namespaces():
    """Return the network namespaces that any process is in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(process))
        except OSError:
            continue
    return found


@pytest.mark.shaped
@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("_links")
def test_real_ranks_take_the_seconds_of_their_links(tmp_path):
    (tmp_path / "wide.py").write_text(MODEL)
    before = namespaces()
    verdict = verify(
        3, link="20Mbit", model=str(tmp_path / "wide.py"), dataset="digits", workers=4,
        batch_size=4, dtype="float32", runs_dir=tmp_path, compressor="none",
    )  # fmt: skip
    assert namespaces() <= before
    assert verdict.parameters_agree
    assert verdict.bytes_agree
    table = pd.read_csv(verdict.folder / "links.csv")
    num_bytes = 4 * (400 * (64 + 10) + 400 + 10)  # of weights and biases, which go together
    large = table[table["num_bytes"] == num_bytes]
    assert list(large["collective"]) == ["all-reduce"] * 3
    assert len(table) == 3
    sending = 1.5 * num_bytes * TCP_FRAMING * 8 / 20e6
    assert 0.95 * sending < large["measured_seconds"].median() < 1.5 * sending
    assert (large["priced_seconds"] >= sending).all()
    assert "a step's communication: " in verdict.summary()


@pytest.mark.shaped
@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("_links", "_importable")
def test_every_collective_takes_the_seconds_of_the_bytes_on_the_busiest_link():
    """200 kB among 4 at 20 Mbit/s are 80 ms, and headers; rings, servers and neighbors carry it."""
    [found] = launch(moved, 4, 200_000, link="20Mbit")
    one = 200_000 * TCP_FRAMING * 8 / 20e6
    shares = {"all-reduce": 1.5, "all-gather": 3, "gather": 3, "broadcast": 3, "neighbours": 2}
    for name, share in shares.items():
        seconds = sorted(m.seconds for m in found if m.collective == name)
        assert len(seconds) == 3
        assert 0.95 * share * one < seconds[1] < 1.5 * share * one, name


@pytest.mark.shaped
@pytest.mark.usefixtures("_links")
def test_links_are_gone_with_a_process_that_is_killed():
    code = (
        "import time\nfrom simsgd.verify.shaped_links import shaped_links\n"
        "with shaped_links('100Mbit', 2) as found:\n"
        "    print(*found, flush=True)\n    time.sleep(600)"
    )
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    holders = [Path("/proc") / process for process in maker.stdout.readline().split()]
    own = {os.readlink(holder / "ns/net") for holder in holders}
    assert len(own) == 2
    maker.kill()
    maker.communicate(timeout=30)
    end = time.monotonic() + 30
    while own & namespaces():
        assert time.monotonic() < end, "they stay"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("module", "name", "value", "rule"),
    [
        (sys, "platform", "darwin", "needs Linux: it uses network namespaces"),
        (shutil, "which", lambda name: None, "needs the program ip"),
        (os, "geteuid", lambda: 1000, "needs root, who alone may make network namespaces"),
    ],
)
def test_what_links_need_is_said_before_anything_is_made(
    monkeypatch, tmp_path, module, name, value, rule
):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module, name, value)
    with pytest.raises(SettingError, match=rule):
        verify(3, link="20Mbit", dataset="digits", runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def step(number, collective, size, seconds, degree=0):
    transfer = {
        "step": number, "collective": collective, "segments": 1, "messages": 1, "rounds": 1,
        "degree": degree, "payload_bytes": size, "payload_bytes_max": size, "slowest_bytes": size,
        "sending": 1,
    }  # fmt: skip
    measured = Measured(collective, size, degree, seconds)
    return LinkStep(number, [measured], [transfer], {collective: 0.001})


def test_large_messages_must_be_within_a_tenth_of_their_price_by_hand():
    """3 hops of 1 ms and 3 MB, with headers, at 1 MB/s; the median over steps counts."""
    price = 3 * 0.001 + 3 * TCP_FRAMING
    for factor, failed in ((1.09, []), (0.91, []), (1.11, ["seconds of all-gather"])):
        times = LinkTimes("1MB", 8e6, 4)
        for number, seconds in enumerate([factor * price, 0.1 * price, 9 * price], 1):
            times.add(step(number, "all-gather", 1_000_000, seconds))
        assert times.failed == failed
        assert [row["priced_seconds"] for row in times.rows] == [pytest.approx(price)] * 3
        assert times.by_ledger == [pytest.approx(price)] * 3
    assert "+11.0 % (over 10 %)" in times.summary()


def test_steps_that_send_nothing_have_no_part_in_medians():
    times = LinkTimes("1MB", 8e6, 4)
    for number in (1, 3, 5):
        times.add(LinkStep(number, [], [], {"all-gather": 0.001}))
        times.add(step(number + 1, "all-gather", 1_000_000, 3.0))
    assert len(times.by_ledger) == 3
    assert times.summary().endswith("3,140 ms by the ledger's collectives; 1 message")


def test_a_server_needs_another_message_than_ranks_that_all_act_as_it():
    times = LinkTimes("1MB", 8e6, 4)
    gather, broadcast = (step(1, name, 1000, 1.0) for name in ("gather", "broadcast"))
    measured = step(1, "all-gather", 1000, 1.0).measured
    both = [*gather.transfers, *broadcast.transfers]
    times.add(LinkStep(1, measured, both, {"all-gather": 0.001}))
    assert times.summary().endswith("1 message, 2 where one rank is the server and not all")


def test_an_all_to_all_that_ranks_gather_takes_their_hops_in_the_ledgers_price():
    """3 hops of 1 ms and 750 kB, then 3 and 750 kB of two segments' chunks, at 1 MB/s."""
    times = LinkTimes("1MB", 8e6, 4)
    (message,) = step(1, "all-to-all", 1_000_000, 1.0).transfers
    (chunks,) = step(1, "all-gather", 250_000, 1.0).transfers
    measured = step(1, "all-gather", 1_000_000, 1.0).measured * 2
    rows = [{**message, "messages": 2}, {**chunks, "messages": 2}]
    times.add(LinkStep(1, measured, rows, {"all-gather": 0.001}))
    assert times.by_ledger == [pytest.approx(2 * (3 * 0.001 + 0.75 * TCP_FRAMING))]


def test_a_rate_in_bytes_is_told_in_bits_too():
    assert LinkTimes("100MB", 8e8, 4).rate_in_words == "100MB (800 Mbit/s)"
    assert LinkTimes("100Mbit", 1e8, 4).rate_in_words == "100Mbit"


def test_messages_may_be_slower_beside_other_work_and_not_faster():
    for seconds, slower in ((9.0, True), (0.1, False)):
        times = LinkTimes("1MB", 8e6, 4)
        times.add(step(1, "all-gather", 1_000_000, seconds))
        assert (times.failed, times.only_slower) == (["seconds of all-gather"], slower)


def test_small_messages_are_not_judged():
    times = LinkTimes("1MB", 8e6, 4)
    times.add(step(1, "neighbours", 99_999, 1.0, degree=2))
    assert times.failed == []
    assert "(not judged: small)" in times.summary()
