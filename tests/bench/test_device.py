import json

import pytest
from click.testing import CliRunner

from simsgd.bench import device, engines
from simsgd.bench.device_checks import _row, agreement
from simsgd.cli import main


@pytest.fixture
def _one_table(monkeypatch):
    monkeypatch.setattr(device, "_TABLES", {"Engines": (engines, {})})
    monkeypatch.setattr(engines, "QUICK", engines.QUICK[:1])
    monkeypatch.setattr(device, "SPECS", ("topk:0.1", "terngrad"))


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


def test_what_differs_from_the_cpu_is_shown():
    near, far = _row("near", 9e-11), _row("far", 2e-10)
    text = device._agreement([near, far])
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["near", "9.0e-11", "yes"],
        ["far", "2.0e-10", "NO"],
    ]


def test_gradients_of_another_engine_are_found_to_differ(monkeypatch):
    from simsgd.gradients.vmap import Vmap

    attempt = Vmap.attempt

    def wrong(self, *given):
        got = attempt(self, *given)
        got.flat[0].mul_(1 + 1e-8)
        return got

    monkeypatch.setattr(Vmap, "attempt", wrong)
    apart = {row["check"] for row in agreement("cpu", ()) if not row["agrees"]}
    assert len(apart) == 6
    assert all("gradients by vmap" in check for check in apart)


def test_no_table_is_begun_too_late(monkeypatch):
    monkeypatch.setattr(device, "_LAST_START", -1.0)
    monkeypatch.setattr(device, "agreement", lambda *given: [])
    measured = device.measure(quick=True, device="cpu")
    assert measured["rows"] == []
    assert len(measured["notes"]) == len(device._TABLES)
    assert measured["notes"][0] == "Kernels of a step is left out: -1 s had passed"


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path):
    asked = ["bench", "device", "--device", "cpu", "--page", str(tmp_path / "none" / "page.md")]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert "--page cannot be written" in done.stderr


@pytest.mark.cuda
def test_a_gpu_agrees_with_the_cpu():
    assert all(row["agrees"] for row in agreement("cuda", device.SPECS))
