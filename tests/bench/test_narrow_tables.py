"""What benches and advice print fits a terminal of 80 columns, and breaks no number."""

import pytest

from simsgd.bench import algorithms, auto, benches, compressors, data, kernels, network, scaling
from simsgd.bench.advise import Advice, Offer
from simsgd.results.network import networks_of
from simsgd.results.pricing import Pricing
from simsgd.results.text_table import TextPage, TextTable

TIMES = {"ms": 12345.678, "ms_min": 11111.111, "ms_max": 22222.222, "ratio": 1.23, "rounds": 21}
CASE = {"model": "resnet depth=20", "workers": 256, "batch": 512}
ROWS = {
    algorithms: [{**CASE, **TIMES, "algorithm": "a loop over workers in Python"}],
    auto: [
        {**CASE, **TIMES, "model": "resnet18", "engine": engine, "chosen": engine == "threads",
         "loss": 0.09, "threads": 2, "own_models": True}
        for engine in ("onepass", "vmap", "loop", "threads")
    ],
    compressors: [
        {**TIMES, "compressor": spec, "workers": 16, "n": 11_000_000, "gb_per_s": 12.345,
         "rows_at_once": 5}
        for spec in ("one read and one write", "randomk:0.001,shared=true")
    ],
    data: [{**CASE, "rounds": 21, "data": TIMES, "step": TIMES, "share": 0.0123}],
    kernels: [
        {**CASE, "plan": "gpu", "method": "randomk:0.001,shared=true", "kernels": 12_345,
         "engine": 2_344, "outside": 10_001, "waits": 104}
    ],
    network: [
        {"link": "100Mbit", "collective": "neighbor exchange", "workers": 8, "bytes": 1_000_000,
         "median_ms": 1291.0, "least_ms": 1284.0, "most_ms": 1320.0, "priced_ms": 1256.0,
         "latency_ms": 1.0, "difference": 0.475}
    ],
    scaling: [
        {**CASE, **TIMES, "over": over, "parameters": 269_722} for over in scaling.OVER
    ],
}  # fmt: skip


def fits(page, width=80):
    """Return the words of a page in a narrow terminal, once its lines were measured."""
    text, left_out = page.fitted(width)
    assert max(map(len, text.splitlines())) <= width, text
    return text.split(), left_out


@pytest.mark.parametrize("bench", ROWS, ids=lambda bench: bench.__name__.rpartition(".")[2])
def test_the_tables_of_a_bench_fit(bench):
    measured = {"compressor": "none", "rows": ROWS[bench], "machine": {}, "notes": []}
    tables = bench.tables(measured)
    whole = str(TextPage(tables)).split()
    words, left_out = fits(TextPage(tables, benches.DISPENSABLE))
    assert set(words) <= set(whole)
    assert set(left_out) <= set(benches.DISPENSABLE)
    if not left_out:
        assert words == whole


def test_advice_fits():
    spec = "randomk:0.01,shared=true"
    offers = [
        Offer(
            compressor=name, payload_bytes=123_456_789, ratio=135.8, compression=12.345,
            communication=1.2345, total=20.0, dense=30.0, varies="gradient", stragglers=1.0,
        )
        for name in ("none", spec)
    ]  # fmt: skip
    (link,) = networks_of(["bandwidth=100Mbit,latency=100us"])
    about = "resnet18_cifar, 16 workers"
    advice = Advice({link.name: offers}, (link,), Pricing(100.0), about, "x86_64", is_here=True)
    words, left_out = fits(advice.page())
    assert "1.50" in words
    assert left_out[0] == "sends"
    assert str(advice.page()) == advice.summary()


def test_a_row_with_long_words_takes_two_lines():
    head = ["run", "network", "error", "sent"]
    rows = [["a-run-with-a-long-name", "bandwidth=100Mbit,latency=100us", "12.5", "1,234 KiB"]]
    page = TextPage([TextTable(head, rows, names=2, title="until error=15")], ["sent"])
    words, left_out = fits(page, 60)
    assert words == ["until", "error=15", *head, *rows[0][:3], "1,234", "KiB"]
    assert left_out == []
    assert fits(page, 45)[0] == words
