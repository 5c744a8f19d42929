"""When runs reach a value, and what they had reached at equal bytes."""

import json
import math

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.results.network_prices import prices
from simsgd.results.pricing import Pricing
from simsgd.results.results_table import result_rows
from simsgd.results.run import Run
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.results.targets import Target, last_within, metric_at_bytes, outside
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder
from tests.results.test_step_times import SLOW

ERRORS = (40.0, 20.0, 30.0, 10.0)  # after steps 2, 4, 6 and 8, each of 500 bytes


def made(folder, errors=ERRORS, name="run", **config):
    run = RunFolder.create(folder, name, {"workers": 4, "epochs": len(errors), **config})
    sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), 500)
    usual = {"segments": 1, "messages": 1, "rounds": 1, "degree": 0, "sending": 1}
    usual |= {"collective": "all-gather"}
    for epoch, error in enumerate(errors):
        for step in (2 * epoch + 1, 2 * epoch + 2):
            row = dict.fromkeys(STEP_COLUMNS, 1) | {"step": step, "epoch": epoch}
            run.add_step(row | {"payload_bytes": 500, "dense_bytes": 4000})
            run.add_transfers([{"step": step, **usual, **sizes}])
        row = dict.fromkeys(EPOCH_COLUMNS, 1.0) | dict.fromkeys(("dense_bytes", "network_bytes"), 1)
        numbers = {"epoch": epoch, "step": 2 * epoch + 2, "payload_bytes": 1000 * (epoch + 1)}
        run.flush_steps()
        run.add_epoch(row | numbers | {"val_error1": error, "val_loss": error / 10})
    return Run(run.folder)


A_STEP = 3.0 + 0.1 + 3 * (0.5 + 0.5)  # compute, compression, three hops of an all-gather
GIVEN = Pricing(compute_ms=3000, compress_ms=100)


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("error=40", 1),
        ("error=39.9", 2),
        ("val_error1=20", 2),
        ("error=19", 4),
        ("accuracy=80", 2),  # which follows from the error
        ("loss=1.0", 4),
        ("val_perplexity=7.3891", 2),  # exp(2) is 7.38906
        ("val_perplexity=7.3890", 4),
        ("error>=40", 1),
        ("payload_bytes>=2500", 3),
        ("step<=2", 1),
    ],
)
def test_a_target_is_reached_at_the_first_evaluation_that_has_it(tmp_path, text, epochs):
    assert Target.of(text).first(made(tmp_path)).epochs == epochs


def test_until_then_a_run_takes_its_steps_and_sends_their_bytes(tmp_path):
    (row,) = prices([made(tmp_path)], [SLOW], GIVEN, Target.of("error=20"), 3500)
    assert (row["to_epochs"], row["to_step"], row["to_bytes"]) == (2, 4, 2000)
    assert row["to_seconds"] == pytest.approx(4 * A_STEP, rel=1e-14)
    assert row["seconds"] == pytest.approx(8 * A_STEP, rel=1e-14)
    assert row["at_bytes"] == 30


def test_what_is_never_reached_is_not_estimated(tmp_path):
    (row,) = prices([made(tmp_path)], [SLOW], GIVEN, Target.of("error=9.99"))
    assert {row[name] for name in row if name.startswith("to_")} == {None}


def test_evaluations_within_an_epoch_count(tmp_path):
    run = made(tmp_path)
    folder = RunFolder.resume(run.folder)
    row = dict(zip(EPOCH_COLUMNS, run.epochs.iloc[0][[*EPOCH_COLUMNS]], strict=True))
    row |= dict.fromkeys(("epoch", "dense_bytes", "network_bytes"), 1)
    folder.add_evaluation(
        {**row, "step": 3, "payload_bytes": 1500, "val_error1": 5.0, "epochs": 1.5}
    )
    folder.close()
    assert Target.of("error=20").first(run).epochs == 1.5
    assert metric_at_bytes(run, 1999) == 5


@pytest.mark.parametrize(
    ("size", "error"),
    [(999, math.nan), (1000, 40), (1999, 40), (2000, 20), (3999, 30), (10**9, 10)],
)
def test_at_so_many_bytes_a_run_has_what_it_last_had_before_them(tmp_path, size, error):
    run = made(tmp_path)
    assert metric_at_bytes(run, size) == pytest.approx(error, nan_ok=True)
    assert (last_within(run, size) is None) == math.isnan(error)
    (row,) = result_rows(run.folder, at_bytes=size)
    assert row["at_bytes"] == pytest.approx(error, nan_ok=True)


def test_more_is_better_where_the_metric_says_so(tmp_path):
    run = made(tmp_path, metric="accuracy")
    assert Target.of("accuracy=85").first(run).epochs == 4
    assert metric_at_bytes(run, 2000) == 80


@pytest.mark.slow
def test_the_tables_say_it_in_words(tmp_path):
    runs = [str(made(tmp_path, errors, name).folder) for name, errors in
            (("good", ERRORS), ("bad", (40.0, 35.0)))]  # fmt: skip
    words = ["network", *runs, "--to", "error=25", "--at-bytes", "2500B", "--network", "10gbe"]
    done = CliRunner().invoke(main, [*words, "--compute-ms", "1", "--compress-ms", "0"])
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "until error=25, and error@1 at 2500B" in lines
    assert "run network epochs steps sent time at 2500B" in lines
    assert "good 10gbe 2 4 1.953 KiB 0.0 s 20.00" in lines
    assert "bad 10gbe never - - - 35.00" in lines
    assert lines[-2:] == [
        "bad never reaches error=25: its best is 35",
        "bad sent 1.953 KiB in all",
    ]
    first = "had sent 1000 B at its first evaluation: --eval-every N has earlier ones"
    assert outside([simsgd.Run(runs[0])], 999) == [f"good {first}"]
    done = CliRunner().invoke(main, [*words, "--json"])
    rows = json.loads(done.output)
    assert [row["to_step"] for row in rows] == [4, None]
    table = simsgd.network(runs, to="error=25", at_bytes=2500)
    assert table["to_step"].tolist()[0] == 4
    assert table["at_bytes"].tolist() == [20, 35]
    done = CliRunner().invoke(main, ["results", *runs, "--at-bytes", "1KB"])
    assert "best  at 1KB" in done.output
    assert CliRunner().invoke(main, ["results", *runs, "--columns", "at 1KB"]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("error", "to must be NAME=VALUE, got error; such as error=5 or val_loss=2.0"),
        ("error=", "to must be NAME=VALUE"),
        ("error=nan", "to must be NAME=VALUE"),
        ("error=0x10", "to must be NAME=VALUE"),
        ("eror=5", "to is not known, got eror; did you mean error"),
        ("lr=0.1", "to is of lr, of which neither more nor less is better, got lr=0.1; write 'lr<"),
    ],
)
def test_a_wrong_target_is_refused_in_one_line(tmp_path, text, error):
    run = made(tmp_path)
    with pytest.raises(SettingError, match=f"^{error}"):
        simsgd.network(run.folder, to=text)
