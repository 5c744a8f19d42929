import pytest

import simsgd.methods.memories
from simsgd.methods.compressors.none import NoCompression
from simsgd.methods.compressors.topk import TopK
from simsgd.registry import build, literal, names
from simsgd.settings import SettingError


def test_positional_and_named_arguments_fill_the_fields():
    assert build("compressor", "topk:0.01") == build("compressor", "topk:ratio=0.01")


def test_parts_are_joined_by_plus():
    assert build("compressor", "topk:0.01+none") == [TopK(0.01), NoCompression()]


def test_a_number_with_an_exponent_is_one_argument():
    assert build("compressor", "topk:1e-3") == build("compressor", "topk:1e-03") == [TopK(0.001)]


def test_settings_of_a_memory_are_given_by_name():
    spec = "dgc:momentum=0.5,masking=false"
    assert build("memory", spec) == [simsgd.methods.memories.DGC(momentum=0.5, masking=False)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("topq:0.1", "did you mean topk"),
        ("topk", "lacks a value for ratio"),
        ("topk:0.1,2", "takes at most 1 value"),
        ("topk:rate=0.1", "has no setting rate, got topk:rate=0.1; it has ratio"),
        ("topk:2", r"has ratio 2, which must lie in \(0, 1\], got topk:2"),
        ("topk:much", "has ratio much, which must be a number"),
        ("./missing.py:Mine", "names a file that does not exist"),
        ("", "is not known"),
    ],
)
def test_a_bad_spec_is_refused_in_one_line(spec, message):
    with pytest.raises(SettingError, match=message) as caught:
        build("compressor", spec)
    assert "\n" not in str(caught.value)


def test_a_users_own_class_is_taken_from_their_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from simsgd.methods.compressors.topk import TopK\n\n"
        "@dataclass(frozen=True)\nclass Mine(TopK):\n    pass\n"
    )
    mine = build("compressor", f"{tmp_path}/mine.py:Mine:0.5")[0]
    assert (type(mine).__name__, mine.ratio) == ("Mine", 0.5)


def test_a_file_without_the_class_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(SettingError, match="names no class Mine"):
        build("compressor", f"{tmp_path}/mine.py:Mine")


def test_literals_are_read_and_never_evaluated():
    read = [literal(text) for text in ("1", "0.5", "true", "None", "(1, 2)", "abc", "__import__")]
    assert read == [1, 0.5, True, None, (1, 2), "abc", "__import__"]


def test_every_method_has_a_name():
    assert {"none", "topk"} <= set(names("compressor"))
    assert {"none", "residual", "dgc"} <= set(names("memory"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError at line 1"),
        ("a = 1\nraise ValueError('mine')", "ValueError at line 2: mine"),
        ("def (:", "SyntaxError at line 1"),
    ],
)
def test_an_error_in_a_users_file_is_reported_with_its_line(tmp_path, content, message):
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(SettingError, match=f"compressor cannot be run: {message}") as caught:
        build("compressor", f"{tmp_path}/mine.py:Mine")
    assert "\n" not in str(caught.value)
