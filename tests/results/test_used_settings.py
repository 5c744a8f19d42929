import json

import pytest

from simsgd.results.figures.plot import plot_results
from simsgd.results.report import report_page
from simsgd.results.results_table import result_rows
from simsgd.results.run import Run
from simsgd.results.tables import EPOCH_COLUMNS
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder


def made(folder, **config):
    return Run(RunFolder.create(folder, "run", {"workers": 4, **config}).folder)


def test_a_setting_is_shown_as_it_was_used_and_not_as_it_was_given(tmp_path):
    run = made(tmp_path, lr=None, epochs=2, used={"lr": 0.1})
    assert (run.used["lr"], run.used["epochs"], run.config["lr"]) == (0.1, 2, None)


def test_a_folder_of_an_earlier_version_has_the_settings_that_were_given(tmp_path):
    assert made(tmp_path, lr=0.2, environment={"torch": "2"}).used == {"workers": 4, "lr": 0.2}


@pytest.mark.parametrize(
    ("config", "topology"),
    [
        ({"algorithm": "choco"}, "ring"),
        ({"algorithm": "choco", "topology": "torus"}, "torus"),
        ({"algorithm": "./mine.py:Mine", "used": {"topology": "star"}}, "star"),
        ({"algorithm": "local"}, None),
    ],
)
def test_the_topology_is_that_of_the_algorithm(tmp_path, config, topology):
    assert made(tmp_path, **config).used.get("topology") == topology


def test_the_topology_that_was_used_is_drawn(tmp_path):
    run = made(tmp_path, algorithm="./mine.py:Mine", used={"topology": "star"})
    axes = plot_results([run], kind="topology").axes[0]
    assert axes.get_xlabel().startswith("star, W = 4")


@pytest.mark.parametrize("used", [3, {"lr": {}}, {"lr": []}, {"lr": [{"value": 1}]}])
def test_a_config_whose_used_settings_are_none_is_refused(tmp_path, used):
    run = made(tmp_path)
    (run.folder / "config.json").write_text(json.dumps({"workers": 4, "used": used}))
    with pytest.raises(SettingError, match="does not hold settings by name"):
        run.config  # noqa: B018


PHASES = [{"from": "start", "value": 0.1}, {"from": "epoch 30", "value": 0.01}]


@pytest.mark.slow
def test_the_summary_and_the_report_have_the_settings_that_were_used(tmp_path):
    run = made(tmp_path, lr=None, optimizer=None, used={"optimizer": "sgd", "lr": PHASES})
    run = finished(run)
    assert "settings                   workers 4; optimizer sgd\n" in run.summary()
    assert "\n                           lr 0.1, from epoch 30: 0.01\n" in run.summary()
    page = report_page(run)
    assert "0.1, from epoch 30: 0.01" in page
    assert '<tr><th>optimizer</th><td class="long">sgd</td></tr>' in page


def test_the_table_shows_what_was_used_of_settings_that_were_given_differently(tmp_path):
    for name, lr in (("a", None), ("b", 0.5)):
        used = {"lr": PHASES if lr is None else lr, "momentum": 0.9}
        finished(made(tmp_path / name, lr=lr, momentum=None, used=used))
    rows = result_rows(tmp_path)
    assert [row["lr"] for row in rows] == ["0.1, from epoch 30: 0.01", 0.5]
    assert "momentum" not in rows[0]


def test_the_table_shows_the_first_and_the_last_of_many_values(tmp_path):
    many = [{"from": f"epoch {i}", "value": 0.1 / 2**i} for i in range(4)]
    for name, lr in (("a", None), ("b", 0.5)):
        used = {"lr": many if lr is None else lr}
        finished(made(tmp_path / name, lr=lr, used=used))
    assert [row["lr"] for row in result_rows(tmp_path)] == ["0.1 to 0.0125", 0.5]


def finished(run):
    row = dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": 0, "step": 1}
    RunFolder.resume(run.folder).add_epoch(row)
    return run
