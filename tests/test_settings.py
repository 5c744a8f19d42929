import pytest

from simsgd.recipe_rules import whole_spec
from simsgd.settings import SettingError, count, kept, require, unknown


@pytest.mark.parametrize(
    ("fraction", "n", "k"),
    [
        (0.001, 1000, 1),
        (0.001, 1001, 2),
        (0.001, 10, 1),
        (1.0, 7, 7),
        (0.1, 30, 3),
        (0.25, 6, 2),
        (0.07, 100, 7),
        (0.0, 5, 1),
    ],
)
def test_a_fraction_is_counted_as_it_is_written(fraction, n, k):
    assert count(fraction, n) == k


def test_counting_in_binary_would_give_one_too_many():
    assert count(kept(0.999), 1000) == 1


def test_an_error_names_the_setting_the_value_the_rule_and_the_fix():
    with pytest.raises(SettingError, match=r"prune must lie in .*, got 1.5; use 0\.999"):
        require(False, "prune", 1.5, "must lie in [0, 1)", "use 0.999")


def test_an_error_can_be_printed_with_the_options_spelling():
    assert (
        SettingError("batch_size", 0, "is 0").sentence("--batch-size") == "--batch-size is 0, got 0"
    )


def test_an_unknown_name_suggests_the_nearest_first_then_all():
    text = str(unknown("model", "lenett", ["resnet", "lenet", "mlp"]))
    assert "did you mean lenet" in text
    assert text.endswith("known: lenet, mlp, resnet")


def test_of_many_known_names_only_the_nearest_are_shown():
    many = [f"model{number}" for number in range(30)]
    near = "model is not known, got mdl7; did you mean model7 or model27 or model17?"
    assert str(unknown("model", "mdl7", many)) == f"{near} `simsgd list models` shows all"
    far = str(unknown("model", "zzz", many))
    assert far.startswith("model is not known, got zzz; nearest of 30: ")
    assert len(far) < 140


def test_a_long_value_is_cut():
    text = str(SettingError("name", "a" * 500, "must be short"))
    assert text == f"name must be short, got {'a' * 100}... (500 characters)"


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        ("topk:0.1+sign", "topk:0.1+sign"),
        ("c.py:L:3", "{here}/c.py:L:3"),
        ("./a+b/c.py:L:1e+3+sign", "{here}/a+b/c.py:L:1e+3+sign"),
        ("topk:ratio=0.1+./c.py:L", "topk:ratio=0.1+{here}/c.py:L"),
        ("./c.py:L:k=3,m=4", "{here}/c.py:L:k=3,m=4"),
        ("grace:c.py:L", "grace:{here}/c.py:L"),
        ("conv*=c.py:L:3,fc.*=topk:0.1,idx=8,*=./d.py:M",
         "conv*={here}/c.py:L:3,fc.*=topk:0.1,idx=8,*={here}/d.py:M"),
        ('{"fc": "c.py:L"}', '{"fc": "{here}/c.py:L"}'),
        ("model+./net.py", "model+{here}/net.py"),
        ("libsvm:a.svm", "libsvm:{here}/a.svm"),
        ("text:nowhere.txt", "text:nowhere.txt"),
        ("text:", "text:"),
        ("object:Mine(path='c.py:L')", "object:Mine(path='c.py:L')"),
        (None, None),
    ],
)  # fmt: skip
def test_files_in_a_spec_get_their_whole_paths(spec, whole, tmp_path, monkeypatch):
    (tmp_path / "a.svm").touch()
    monkeypatch.chdir(tmp_path)
    wanted = whole and whole.replace("{here}", str(tmp_path))
    assert whole_spec(spec) == wanted
    assert whole_spec(wanted) == wanted
