"""Workers that are nodes of several devices, held to runs whose workers are as much by themselves.

Letters: N nodes, G devices of each, M passes, b samples of a device.
"""

import json

import pytest
import torch
from torch import nn

import simsgd
from simsgd import SettingError, Simulator
from simsgd.communication.node_bytes import WithinNodes, chunk_sizes
from simsgd.simulator.step_bytes import bytes_of
from simsgd.training.memory_use.estimate import footprint

from ..toy import TINY, batch_norm_mlp, batches, mlp

N, G, b = 2, 3, 4
ALGORITHMS = (
    "allreduce", "local:local_steps=2", "diloco:local_steps=2", "choco", "dpsgd", "async",
    "fedavg:local_steps=2", "scaffold:local_steps=2", "streaming:local_steps=2,fragments=1,delay=1",
)  # fmt: skip


def trained(model, steps=4, passes=1, **settings):
    simulator = Simulator(model, lr=0.1, accumulate=passes, **settings)
    records = [simulator.step(*own) for own in batches(steps, N * G * passes * b)]
    return simulator, records


def assert_same(one, other):
    for name, value in one.parameters().items():
        assert torch.allclose(value, other.parameters()[name], rtol=1e-10, atol=1e-12), name


WAYS = [(name, "onepass") for name in ALGORITHMS]
WAYS += [(name, engine) for name in ("allreduce", "dpsgd") for engine in ("loop", "vmap")]


@pytest.mark.parametrize(("algorithm", "engine"), WAYS)
def test_a_node_is_a_worker_that_goes_through_its_devices_samples_in_passes(algorithm, engine):
    how = {"compressor": "topk:0.3", "algorithm": algorithm, "engine": engine}
    nodes, records = trained(mlp(), cluster=f"{N}x{G}", **how)
    workers = Simulator(mlp(), workers=N, lr=0.1, accumulate=G, **how)
    for own, record in zip(batches(4, N * G * b), records, strict=True):
        other = workers.step(*own)
        assert other.payload_bytes == record.payload_bytes
        assert torch.allclose(other.losses, record.losses)
        assert torch.allclose(other.output, record.output, rtol=1e-10, atol=1e-12)
    assert_same(nodes, workers)


def test_devices_alone_are_as_many_workers_where_all_is_averaged():
    nodes, _ = trained(batch_norm_mlp(0, nn.Dropout(0.5)), cluster=f"{N}x{G}", passes=2)
    workers, _ = trained(batch_norm_mlp(0, nn.Dropout(0.5)), workers=N * G, passes=2)
    assert_same(nodes, workers)
    for name, own in workers.buffers.items():
        assert torch.allclose(nodes.buffers[name].flatten(0, 1), own)
    for how in ({}, {"buffers": "rank0"}):
        mean = workers.evaluation_model(**how).state_dict()
        for name, value in nodes.evaluation_model(**how).state_dict().items():
            assert torch.allclose(value, mean[name]), name


def test_of_one_node_the_mean_of_its_devices_is_evaluated():
    nodes, _ = trained(batch_norm_mlp(), cluster=f"{N}x{G}", algorithm="dpsgd")
    own = nodes.evaluation_model(worker=1).state_dict()["1.running_mean"].clone()
    assert torch.allclose(own, nodes.buffers["1.running_mean"][1].mean(0))


def test_compressor_and_memory_act_once_a_node():
    nodes, records = trained(mlp(), cluster=f"{N}x{G}", compressor="topk:0.3", memory="residual")
    assert all(len(record.payload_bytes) == N for record in records)
    kept = nodes.state_dict()["voices"]["0.weight"]["memory"]
    assert {len(rows) for rows in kept.values()} == {N}


def test_a_resumed_simulation_goes_on_to_the_last_bit():
    how = {"cluster": f"{N}x{G}", "compressor": "topk:0.3", "lr": 0.1, "momentum": 0.9}
    whole, half = (Simulator(batch_norm_mlp(), **how) for _ in range(2))
    data = list(batches(4, N * G * b))
    for own in data[:2]:
        half.step(*own)
    resumed = Simulator(batch_norm_mlp(seed=1), **how)
    resumed.load_state_dict(half.state_dict())
    for own in data[2:]:
        resumed.step(*own)
    for own in data:
        whole.step(*own)
    assert all(torch.equal(v, resumed.parameters()[n]) for n, v in whole.parameters().items())
    assert all(torch.equal(v, resumed.buffers[n]) for n, v in whole.buffers.items())


def in_messages(numel, devices):
    """Return the numbers that leave and reach each device, message by message."""
    chunks, sent, received = chunk_sizes(numel, devices), [0] * devices, [0] * devices

    def message(source, target, size):
        sent[source] += size
        received[target] += size

    for source in range(devices):  # reduce-scatter: to each what it adds up
        for target in range(devices):
            if source != target:
                message(source, target, chunks[target])
    for other in range(1, devices):  # gather at the first, and scatter from it
        message(other, 0, chunks[other])
        message(0, other, chunks[other])
    for hop in range(devices - 1):  # all-gather around the ring
        for source in range(devices):
            message(source, (source + 1) % devices, chunks[(source - hop) % devices])
    return tuple(sent), tuple(received)


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("numel", [1, 7, 24, 83])
def test_bytes_within_a_node_are_those_of_its_messages(numel, devices):
    found = WithinNodes.of([(numel, 4)], devices)
    sent, received = in_messages(numel, devices)
    assert found.sent == tuple(4 * size for size in sent)
    assert found.received == tuple(4 * size for size in received)
    assert sum(found.sent) == sum(found.received)


def test_only_nodes_that_train_send_within():
    how = {"cluster": "4x2", "algorithm": "fedavg:local_steps=2,participation=0.5", "lr": 0.1}
    simulator = Simulator(mlp(), **how)
    record = simulator.step(*next(batches(1, 8 * b)))
    numel = simulator.components.layout.n
    assert record.within.total == 2 * sum(WithinNodes.of([(numel, 8)], 2).sent)


def run_of(folder, name="run", **settings):
    settings = {**TINY, "batch_size": 20, "epochs": 2, "compressor": "topk:0.1", **settings}
    return simsgd.train(**settings, runs_dir=folder, name=name, quiet=True)


@pytest.mark.slow
def test_a_run_records_bytes_of_both_levels_and_resumes(tmp_path):
    whole = run_of(tmp_path, cluster="2x3", checkpoint_every=5)
    plain = run_of(tmp_path, "plain", workers=2, accumulate=3)
    assert whole.config["workers"] == 2
    assert whole.steps["payload_bytes"].tolist() == plain.steps["payload_bytes"].tolist()
    assert whole.steps["loss"].tolist() == pytest.approx(plain.steps["loss"].tolist(), rel=1e-4)
    numel = whole.steps["dense_bytes"][0] // 4
    within = WithinNodes.of([(numel, 4)], 3)
    rows = whole.step_columns("within_bytes", "within_link_bytes")
    assert set(rows["within_bytes"]) == {round(sum(within.sent) / 3)}
    assert set(rows["within_link_bytes"]) == {max(*within.sent, *within.received)}
    assert "within_bytes" not in plain.steps
    assert "nodes of 3 devices each, x 20 samples" in (whole.folder / "log.txt").read_text()
    short = run_of(tmp_path, "short", cluster="2x3", epochs=1)
    resumed = simsgd.train(resume=short.folder, epochs=2, quiet=True)
    assert resumed.steps["loss"].tolist() == whole.steps["loss"].tolist()


def test_a_run_is_priced_on_the_cluster_that_it_was_trained_on(tmp_path):
    own, plain = run_of(tmp_path, cluster="2x3"), run_of(tmp_path, "plain", workers=2, accumulate=3)
    how = {"compute_ms": 3, "compress_ms": 1}
    link = "nvlink,1gbe"
    priced = simsgd.network(own.folder, link, **how)
    again = simsgd.network(own.folder, link, cluster="2x3", **how)
    other = simsgd.network(plain.folder, link, cluster="2x3", **how)
    columns = ["communication_ms", "total_ms", "dense_ms", "latency_ms", "messages"]
    for table in (again, other):
        assert priced[columns].to_numpy() == pytest.approx(table[columns].to_numpy())
    with pytest.raises(SettingError, match=r"^cluster must be that of the run run, .* 2x3, got 2x"):
        simsgd.network(own.folder, link, cluster="2x4", **how)
    with pytest.raises(SettingError, match=r"^network is one network, and a cluster has one with"):
        simsgd.network(own.folder, "1gbe", **how)


@pytest.mark.slow
def test_advice_on_a_compressor_is_the_price_of_its_run(tmp_path):
    run = run_of(tmp_path, cluster="2x3")
    how = {"compute_ms": 3, "compress_ms": 1}
    row = simsgd.network(run.folder, "nvlink,1gbe", **how).iloc[0]
    shape = {"input_shape": "1x8x8", "model": TINY["model"], "model_config": TINY["model_config"]}
    advice = simsgd.advise("nvlink,1gbe", "topk:0.1", cluster="2x3", **shape, **how)
    [offer] = advice.offers["nvlink,1gbe"]
    assert 1000 * offer.communication == pytest.approx(row["communication_ms"])
    assert 1000 * offer.total == pytest.approx(row["total_ms"])


def test_the_bytes_of_both_levels_follow_from_the_shapes(tmp_path):
    run = run_of(tmp_path, cluster="2x3")
    shape = {"input_shape": "1x8x8", "model": TINY["model"], "model_config": TINY["model_config"]}
    sizes = bytes_of(cluster="2x3", compressor="topk:0.1", **shape)
    assert sizes.workers == 2
    assert sizes.payload_bytes == run.steps["payload_bytes"][0]
    assert sizes.within.mean == run.step_columns("within_bytes")["within_bytes"][0]
    assert "2 workers, nodes of 3 devices each" in sizes.summary()
    assert "its first device" in sizes.summary()
    assert json.loads(json.dumps(sizes.plain()))["within_node"]["sent_bytes"] == [
        *sizes.within.sent
    ]
    assert "within_node" not in bytes_of(workers=2, **shape).plain()


@pytest.mark.slow
def test_streams_of_text_are_of_devices(tmp_path):
    how = {
        "dataset": "pydoc", "model": "lstm_lm", "model_config": "emb=8, hidden=8",
        "batch_size": 2, "bptt": 5, "steps": 3, "lr": 0.1, "quiet": True, "runs_dir": tmp_path,
        "dtype": "float64",
    }  # fmt: skip
    nodes = simsgd.train(cluster="2x2", name="nodes", **how)
    workers = simsgd.train(workers=4, name="workers", **how)
    assert nodes.steps["loss"].tolist() == pytest.approx(workers.steps["loss"].tolist())


def test_a_dry_run_counts_the_gradients_of_all_devices():
    how = {**TINY, "batch_size": 20}
    nodes, workers = footprint(cluster="2x3", **how), footprint(workers=6, **how)
    assert nodes.lasting["gradients of 2 workers"] == workers.lasting["gradients of 6 workers"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"workers": 6, "cluster": "2x3"},
            r"^cluster has 2 nodes, .* here are 6 workers",
        ),
        ({"cluster": "2x"}, r"^cluster must be how many nodes and how many devices of each"),
        ({"cluster": 4}, r"^cluster must be text"),
        ({"cluster": "4x1"}, r"^cluster has one device a node"),
        ({"cluster": "2x3", "algorithm": "fedavg", "clients": 9}, r"^clients does not go together"),
        (
            {"cluster": "2x3", "algorithm": "fedavg", "client_buffers": "average"},
            r"^client_buffers does not go together with cluster",
        ),
        ({"cluster": "2x3", "compressor": "variance"}, r"^compressor looks at .* single samples"),
    ],
)
def test_what_makes_no_sense_on_a_cluster_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(mlp(), lr=0.1, **settings)


def test_a_batch_that_devices_cannot_share_is_refused():
    simulator = Simulator(mlp(), cluster="2x3", lr=0.1)
    with pytest.raises(SettingError, match=r"a multiple of the 2 workers x 3 devices, got 8"):
        simulator.step(*next(batches(1, 8)))
    with pytest.raises(SettingError, match=r"^global_batch_size must be .* 2 workers x 3 devices"):
        simsgd.train(**{**TINY, "batch_size": None}, cluster="2x3", global_batch_size=8)
