import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import simsgd
from simsgd import SettingError, Simulator
from simsgd.communication.node_bytes import WithinNodes
from simsgd.communication.transport import Distributed, is_rank_zero

from ..process_group import (
    asked,
    batches,
    carried,
    hooked,
    hooked_unalike,
    measured,
    messages,
    messages_of_a_hooked_step,
    network,
    nonfinite_batches,
    plain_network,
    shared_out,
    shared_out_nonfinite,
    thirty_thousand,
    told_within,
    trained,
    trained_unalike,
    voted,
)

pytestmark = pytest.mark.distributed
KINDS = sorted(messages(4))
CARRIED = {}  # one exchange serves several tests


def alone(workers, model=None, steps=6, **settings):
    simulator = Simulator(model or network(), workers=workers, **settings)
    for x, y in batches(steps):
        record = simulator.step(x, y, epoch=9)
    return simulator, record


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_processes_is_that_of_one(four_ranks, kind):
    mean, wanted, *_ = carried_once(four_ranks, kind)
    off = {"dense": 1e-15, "shared": 1e-15, "float16": 2e-3}.get(kind, 0)  # added in another order
    assert torch.allclose(mean, wanted, rtol=0, atol=off)


@pytest.mark.parametrize("kind", KINDS)
def test_every_process_hands_over_what_the_ledger_counts(four_ranks, kind):
    _, _, sent, payload, _ = carried_once(four_ranks, kind)
    assert sent.tolist() == payload.tolist()


def carried_once(ranks, kind):
    if kind not in CARRIED:
        CARRIED[kind] = ranks(carried, kind)
    return CARRIED[kind]


def test_unequal_buffers_travel_as_they_are(four_ranks):
    _, _, sent, _, put = carried_once(four_ranks, "unequal")
    assert len(set(sent.tolist())) > 1
    assert put == sent.tolist()


def test_messages_of_no_entries_arrive(four_ranks):
    mean, _, sent, _, _ = carried_once(four_ranks, "nobody")
    assert not mean.any()
    assert sent.tolist() == [4] * 4  # a count of 0


@pytest.mark.parametrize("numel", [3, 8, 40_001])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_of_a_node_send_what_is_counted(four_ranks, devices, numel):
    total, told, counted = four_ranks(told_within, devices, numel)
    values = torch.arange(numel, dtype=torch.float64)
    assert torch.equal(total, devices * values + 1000 * sum(range(devices)))
    assert all(torch.equal(own, values) for own in told)
    within = WithinNodes.of([(numel, 8)], devices)
    assert counted == list(zip(within.sent, within.received, strict=True))


def test_all_processes_get_one_vote(four_ranks):
    votes, wanted, sent = four_ranks(voted)
    assert all(torch.equal(vote, wanted) for vote in votes)
    assert sent == 4 + 3  # a scale, and 20 bits


def test_the_largest_of_all_is_found(four_ranks):
    assert four_ranks(asked).tolist() == [[3.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_float16_mean_of_30000_over_4_ranks_stays_30000(four_ranks, dtype):
    assert four_ranks(thirty_thousand, dtype).tolist() == [30_000.0] * 3


SETTINGS = [
    {"prune": 0.8, "lr": 0.1, "momentum": 0.9, "clip": 1.0},
    {"compressor": "qsgd:4", "memory": "none", "lr": 0.1},
    {"compressor": "threshold:0.01", "lr": 0.1},
    {"compressor": "powersgd:1", "memory": "residual", "lr": 0.1},
    {"compressor": "topk:0.3", "memory": "ef21", "lr": 0.1},
    {"algorithm": "dpsgd", "topology": "exponential", "lr": 0.1, "momentum": 0.9},
    {"algorithm": "powergossip", "topology": "star", "lr": 0.1},
    {"algorithm": "choco", "compressor": "topk:0.2", "lr": 0.1, "consensus_stepsize": 0.2},
    {"algorithm": "dcd", "compressor": "threshold:0.001", "topology": "star", "lr": 0.1},
    {"algorithm": "local", "compressor": "topk:0.2", "local_steps": 4, "lr": 0.1},
    {"algorithm": "fedavg", "local_steps": 2, "lr": 0.1, "momentum": 0.9},
    {"algorithm": "diloco", "local_steps": 5, "lr": 0.01, "momentum": 0.9, "nesterov": True},
]


def assert_alike(record, wanted):
    assert record["payload"] == wanted["payload"]
    assert record["network"] == wanted["network"]
    assert torch.allclose(record["losses"], wanted["losses"], rtol=1e-10)
    hosted = len(record["output"])
    assert torch.allclose(record["output"], wanted["output"][:hosted], rtol=1e-10)
    for (segment, *counts, error), (other, *counted, wrong) in zip(
        record["measures"], wanted["measures"], strict=True
    ):
        assert (segment, counts) == (other, counted)
        assert error == pytest.approx(wrong, rel=1e-9, abs=1e-12)


def assert_same_state(state, wanted):
    for name, parameter in wanted["parameters"].items():
        assert torch.allclose(state["parameters"][name], parameter, rtol=1e-10)
    for name, buffer in wanted["buffers"].items():
        assert torch.allclose(state["buffers"][name], buffer, rtol=1e-10)
    for segment, segment_state in wanted["voices"].items():
        for part, tensors in segment_state.items():
            for name, tensor in tensors.items():
                own = state["voices"][segment][part][name]
                assert own.shape == tensor.shape
                assert torch.allclose(own, tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("partial_sums", [True, False])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_two_ranks_of_four_workers_are_one_process_of_eight(two_ranks, settings, partial_sums):
    simulator, record = alone(8, **settings)
    own, state = two_ranks(shared_out, 8, settings, partial_sums)
    assert_alike(own, measured(record))
    assert_same_state(state, simulator.state_dict())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_one_process_began_two_go_on_with(two_ranks, settings):
    simulator, _ = alone(8, **settings)
    begun = simulator.state_dict()
    begun = {**begun, "voices": {n: clone(v) for n, v in begun["voices"].items()}}
    own, state = two_ranks(shared_out, 8, settings, True, begun)
    for x, y in batches(6):
        record = simulator.step(x, y, epoch=9)
    assert_alike(own, measured(record))
    assert_same_state(state, simulator.state_dict())


@pytest.mark.parametrize("rule", ["skip", "zero"])
@pytest.mark.parametrize(
    "settings",
    [
        {"prune": 0.8, "lr": 0.1, "momentum": 0.9, "clip": 1.0},
        {"compressor": "topk:0.3", "lr": 0.1, "value_dtype": "float16"},
        {"algorithm": "choco", "compressor": "topk:0.2", "lr": 0.1},
    ],
    ids=str,
)
def test_one_ranks_number_that_is_not_finite_is_every_ranks_affair(two_ranks, settings, rule):
    settings = {**settings, "on_nonfinite": rule}
    simulator = Simulator(network(), workers=8, **settings)
    wanted = [simulator.step(x, y, epoch=9) for x, y in nonfinite_batches(6)]
    own, state = two_ranks(shared_out_nonfinite, 8, settings)
    assert own == [(r.applied, r.nonfinite.tolist(), r.payload_bytes) for r in wanted]
    assert [applied for applied, *_ in own] == [True] * 3 + [rule == "zero"] + [True] * 2
    assert_same_state(state, simulator.state_dict())


def clone(segment_state):
    return {
        part: {n: t.clone() for n, t in tensors.items()} for part, tensors in segment_state.items()
    }


def test_workers_that_do_not_divide_among_ranks_are_refused(two_ranks):
    with pytest.raises(SettingError, match="workers must be a multiple of the 2 ranks, got 7"):
        two_ranks(shared_out, 7, {"lr": 0.1}, True)


def test_somebody_elses_compressor_is_refused_where_its_bytes_must_be_decoded(two_ranks, tmp_path):
    path = tmp_path / "half.py"
    path.write_text(
        "class Half:\n"
        "    def compress(self, tensor, name): return [tensor.half()], tensor.dtype\n"
        "    def decompress(self, tensors, ctx): return tensors[0].to(ctx)\n"
    )
    settings = {"compressor": f"grace:{path}:Half", "memory": "none", "lr": 0.1}
    with pytest.raises(SettingError, match="compressor cannot send between processes"):
        two_ranks(shared_out, 2, settings, False)
    _, record = alone(4, **settings)
    own, _ = two_ranks(shared_out, 4, settings, True)
    assert_alike(own, measured(record))


TINY = {
    "model": "mlp", "model_config": "hidden=16", "dataset": "digits", "workers": 4,
    "batch_size": 30, "epochs": 2, "device": "cpu", "quiet": True, "dtype": "float64",
    "prune": 0.9,
}  # fmt: skip


def test_a_run_that_is_spread_over_processes_leaves_the_same_folder(two_ranks, tmp_path):
    settings = {**TINY, "runs_dir": str(tmp_path)}
    one = simsgd.train(**settings, name="one")
    other = simsgd.Run(two_ranks(trained, {**settings, "name": "other"}))
    assert {path.name for path in one.folder.iterdir()} == {p.name for p in other.folder.iterdir()}
    for table in ("epochs", "steps"):
        wanted, got = (getattr(run, table).filter(regex="^(?!.*seconds)") for run in (one, other))
        assert wanted.columns.equals(got.columns)
        for column in wanted:
            assert got[column].tolist() == pytest.approx(wanted[column].tolist(), rel=1e-9), column
        for column in ("payload_bytes", "network_bytes", "dense_bytes"):
            assert got[column].tolist() == wanted[column].tolist()
    assert one.transfers.equals(other.transfers)


def test_a_spread_run_goes_on_in_one_process(two_ranks, tmp_path):
    settings = {**TINY, "runs_dir": str(tmp_path)}
    folder = two_ranks(trained, {**settings, "name": "short", "epochs": 1})
    run = simsgd.train(resume=folder, epochs=2, quiet=True)
    whole = simsgd.train(**settings, name="whole")
    assert run.steps["loss"].tolist() == pytest.approx(whole.steps["loss"].tolist(), rel=1e-9)


def test_ranks_that_were_asked_for_different_things_are_refused(two_ranks, tmp_path):
    with pytest.raises(SettingError, match="seed is 1 on rank 1 and 0 on rank 0"):
        two_ranks(trained_unalike, {**TINY, "runs_dir": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused_on_all_ranks(two_ranks, tmp_path):
    settings = {**TINY, "epochs": 1, "runs_dir": str(tmp_path), "name": "taken"}
    two_ranks(trained, settings)
    with pytest.raises(SettingError, match="name exists already"):
        two_ranks(trained, settings)


def test_one_process_is_the_first():
    assert is_rank_zero()
    with pytest.raises(ValueError, match="process group"):
        Distributed(2)


def started(rank, port, folder, *words):
    """Start a rank as torchrun would, without the agent that ends all when one dies."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
    place |= {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    names = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "simsgd", "train", *words, "--runs-dir", str(folder)],
        env={**os.environ, **names, **{name: str(value) for name, value in place.items()}},
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def wait_for(path, process, seconds=240):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, f"no {path.name} came"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_process_is_killed_the_other_ends_and_the_run_can_go_on(tmp_path, victim):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", "mlp", "--model-config", "hidden=16", "--dataset", "digits", "--device"]
    words += ["cpu", "--workers", "4", "--compressor", "randomk:0.1", "--epochs", "100"]
    words += ["--dtype", "float64", "--checkpoint-every", "20", "--quiet", "--name", "killed"]
    ranks = [started(rank, port, tmp_path, *words) for rank in range(2)]
    wait_for(tmp_path / "killed/last.pt", ranks[0])
    ranks[victim].kill()
    _, output = ranks[1 - victim].communicate(timeout=30)
    ranks[victim].communicate()
    assert ranks[1 - victim].returncode == 4
    assert "another process no longer responds" in output
    assert f"simsgd train --resume {tmp_path / 'killed'}" in output
    run = simsgd.train(resume=tmp_path / "killed", epochs=6, quiet=True)
    settings = {**TINY, "batch_size": None, "prune": None, "compressor": "randomk:0.1"}
    whole = simsgd.train(**{**settings, "runs_dir": tmp_path, "epochs": 6, "name": "whole"})
    losses = run.steps["loss"].tolist()
    assert len(losses) >= len(whole.steps)
    assert losses[: len(whole.steps)] == pytest.approx(whole.steps["loss"].tolist(), rel=1e-9)


def children(process):
    """Return the processes that a process started and that still live."""
    tasks = Path(f"/proc/{process.pid}/task")
    return [int(p) for task in tasks.iterdir() for p in (task / "children").read_text().split()]


@pytest.mark.slow
def test_torchrun_starts_a_run_anew_where_its_checkpoint_is(tmp_path):
    words = ["--model", "mlp", "--model-config", "hidden=16", "--dataset", "digits", "--device"]
    words += ["cpu", "--workers", "4", "--compressor", "randomk:0.1", "--epochs", "12"]
    words += ["--dtype", "float64", "--checkpoint-every", "10", "--quiet", "--name", "elastic"]
    agent = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", "1", "-m", "simsgd", "train", *words, "--runs-dir", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        wait_for(tmp_path / "elastic/last.pt", agent)
        os.kill(children(agent)[-1], signal.SIGKILL)
        _, output = agent.communicate(timeout=400)  # ranks wait half a minute for each other
    finally:
        agent.kill()
    assert agent.returncode == 0, output
    run = simsgd.Run(tmp_path / "elastic")
    assert "resumed after step" in run.log
    settings = {**TINY, "batch_size": None, "prune": None, "compressor": "randomk:0.1"}
    whole = simsgd.train(**{**settings, "runs_dir": tmp_path, "epochs": 12, "name": "whole"})
    assert run.steps["step"].tolist() == whole.steps["step"].tolist()
    assert run.steps["loss"].tolist() == pytest.approx(whole.steps["loss"].tolist(), rel=1e-9)
    assert run.steps["payload_bytes"].tolist() == whole.steps["payload_bytes"].tolist()


def test_a_process_that_torchrun_did_not_start_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "left over")
    with pytest.raises(SettingError, match="LOCAL_RANK must be a whole number, as torchrun sets"):
        simsgd.train(**TINY, runs_dir=tmp_path)
    for name, value in {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "RANK": 2, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SettingError, match="RANK must be below WORLD_SIZE, 2, got 2"):
        simsgd.train(**TINY, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_may_be_started_anew_needs_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    with pytest.raises(SettingError, match="name is needed with torchrun --max-restarts"):
        simsgd.train(**TINY, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


HOOKS = [
    ({"compressor": "topk:0.1"}, 0.9),
    ({"compressor": "topk:0.1", "memory": "dgc:0.9"}, 0.0),
    ({"compressor": "qsgd:4", "seed": 3}, 0.0),  # which is unbiased, and so without a memory
    ({"compressor": "powersgd:1", "memory": "residual"}, 0.0),
    ({"compressor": "threshold:0.01", "memory": "residual", "value_dtype": "float16"}, 0.0),
]


@pytest.mark.parametrize(("settings", "momentum"), HOOKS, ids=[h["compressor"] for h, _ in HOOKS])
def test_a_hooked_training_is_the_simulated_one(two_ranks, settings, momentum):
    simulator, record = alone(2, plain_network(), steps=8, lr=0.1, momentum=momentum, **settings)
    parameters, sent = two_ranks(hooked, settings, momentum)
    for own, wanted in zip(parameters, simulator.components.params.values(), strict=True):
        assert torch.allclose(own, wanted, rtol=1e-10)
    if settings["compressor"] != "threshold:0.01":
        assert sent == 8 * record.payload_bytes[0]


@pytest.mark.parametrize(
    ("compressor", "sent"),
    [("topk:0.1", ["all-gather", "all-reduce"]), ("powersgd:1", ["all-reduce"] * 2)],
)
def test_a_bucket_of_a_hook_is_as_many_messages_as_are_priced(two_ranks, compressor, sent):
    assert two_ranks(messages_of_a_hooked_step, {"compressor": compressor}) == sent


def test_a_hook_goes_on_where_it_stopped(two_ranks):
    settings, momentum = HOOKS[0]
    whole, sent = two_ranks(hooked, settings, momentum)
    again, sent_again = two_ranks(hooked, settings, momentum, 8, 3)
    assert sent == sent_again
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


def test_how_buckets_are_cut_changes_nothing(two_ranks):
    settings, momentum = HOOKS[0]
    whole, _ = two_ranks(hooked, settings, momentum)
    cut, _ = two_ranks(hooked, settings, momentum, 8, None, 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"seed": 1}, "seed is 0 on rank 0 and 1 on rank 1"),
        ({"compressor": "sign"}, "compressor is topk:0.01 on rank 0 and sign on rank 1"),
        ({"index_dtype": "gap16"}, "index_dtype is int32 on rank 0 and gap16 on rank 1"),
    ],
)
def test_ranks_that_register_other_settings_are_told(two_ranks, settings, told):
    with pytest.raises(SettingError) as refused:
        two_ranks(hooked_unalike, settings)
    assert str(refused.value) == f"{told}; give all ranks the same"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "dgc"}, "memory owns the momentum, which no regime gives here"),
        ({"compressor": "variance", "memory": "none"}, "which a DistributedDataParallel model"),
        ({"memory": "residual:lr=true"}, "memory needs the learning rate"),
    ],
)
def test_settings_that_a_hook_cannot_serve_are_refused(two_ranks, settings, message):
    with pytest.raises(SettingError, match=message):
        two_ranks(hooked, settings, 0.0)
