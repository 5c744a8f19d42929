import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from simsgd.bench import device, engines, timing
from simsgd.bench.device_checks import _row, agreement
from simsgd.cli import main


@pytest.fixture
def _one_table(monkeypatch):
    monkeypatch.setattr(device, "_TABLES", {"Engines": (engines, {})})
    monkeypatch.setattr(engines, "QUICK", engines.QUICK[:1])
    monkeypatch.setattr(device, "SPECS", ("topk:0.1", "terngrad"))


@pytest.mark.slow
@pytest.mark.usefixtures("_one_table")
def test_all_of_a_device_goes_to_the_screen_a_file_and_a_page(tmp_path):
    page, rows = tmp_path / "page.md", tmp_path / "rows.json"
    asked = ["bench", "device", "--quick", "--device", "cpu", "--page", page, "--json", rows]
    done = CliRunner().invoke(main, list(map(str, asked)))
    assert done.exit_code == 0, done.output
    found = json.loads(rows.read_text())["rows"]
    assert {row["table"] for row in found} == {"agreement", "Engines"}
    assert all(row["agrees"] for row in found if row["table"] == "agreement")
    text = page.read_text()
    assert "That is no GPU: none was measured." in text
    for row in found:
        name = row.get("check") or row["engine"]
        assert name in text
        assert name in done.output


def test_a_gpu_is_taken_where_there_is_one():
    options = {p.name: p.default for p in main.commands["bench"].commands["device"].params}
    assert options["device"] == "auto"


def test_what_differs_from_the_cpu_is_shown():
    near, far = _row("near", 9e-11), _row("far", 2e-10)
    table = device._agreement([near, far])
    assert table.rows == [["near", "9.0e-11", "yes"], ["far", "2.0e-10", "NO"]]


@pytest.mark.slow
def test_gradients_of_another_engine_are_found_to_differ(monkeypatch):
    from simsgd.gradients.vmap import Vmap

    attempt = Vmap.attempt

    def wrong(self, *given):
        got = attempt(self, *given)
        got.flat[0].mul_(1 + 7e-10)  # which no check of an engine sees
        return got

    monkeypatch.setattr(Vmap, "attempt", wrong)
    apart = {row["check"] for row in agreement("cpu", (), []) if not row["agrees"]}
    assert len(apart) == 6
    assert all("gradients by vmap" in check for check in apart)


def test_no_part_is_begun_too_late(monkeypatch):
    monkeypatch.setattr(device, "_SECONDS", -1.0)
    monkeypatch.setattr(device, "SPECS", ("topk:0.1", "terngrad"))
    measured = device.measure(quick=True, device="cpu")
    assert measured["rows"] == []
    assert measured["notes"] == [
        "there was no time for gradients of mlp; gradients of resnet depth=8; "
        "gradients of transformer_lm emb=16,layers=1,heads=2",
        "there was no time for messages of topk:0.1; messages of terngrad",
        *(f"{title}: there was no time for it" for title in device._TABLES),
    ]


def test_each_part_has_its_share_of_what_those_before_it_left(monkeypatch):
    clock = iter([0.0, *[100.0] * 3])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(device, "_SHARES", {"first": 6})
    with timing.budget(400):
        three = "first", "other", "last"
        shares = [device._share("first", three), device._share("last", three[2:])]
    assert shares == [300 * 6 / 14, 300]


def test_a_gpu_is_checked_by_its_tests_before_it_is_timed(monkeypatch):
    rows = [{"table": "tests", "test": "a::b", "outcome": "passed"}]
    rows += [{"table": "tests", "test": "a::c", "outcome": "failed"}] * 2
    given = []
    monkeypatch.setattr(device, "cuda_tests", lambda *own: given.append(own) or (rows, ["a note"]))
    parts = device._parts("cuda:1", quick=True)
    assert list(parts) == ["agreement", "waits", "tests", *device._TABLES]
    notes = []
    with timing.budget(50):
        assert parts["tests"](notes) == rows
    assert given[0][0] == "cuda:1"
    assert 49 < given[0][1] <= 50
    assert notes == ["a note"]
    counted, *others = device._outcomes(rows).splitlines()
    assert counted == "2 failed, 1 passed"
    assert [line.split() for line in others] == [["a::c", "failed"]] * 2
    assert "tests" not in device._parts("cpu", quick=True)


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path):
    asked = ["bench", "device", "--device", "cpu", "--page", str(tmp_path / "none" / "page.md")]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert "Invalid value for '--page': there is no folder" in done.stderr


@pytest.mark.cuda
def test_a_gpu_agrees_with_the_cpu():
    assert all(row["agrees"] for row in agreement("cuda", device.SPECS, []))
