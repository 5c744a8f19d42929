import json

import pytest

from simsgd.results.figures.plot import plot_results
from simsgd.results.run import Run
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
