import json

import pytest
from click.testing import CliRunner

from simsgd.bench import threads
from simsgd.cli import main


@pytest.mark.slow
def test_the_quick_bench_times_each_choice_alone_and_beside_busy_processes(tmp_path):
    path = tmp_path / "rows.json"
    asked = ["bench", "threads", "--quick", "--model", "mlp", "--json", str(path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    choices = [(row["beside"], row["threads"]) for row in rows]
    both = (threads.IDLE, threads.BUSY)
    assert choices == [(beside, name) for beside in both for name in ("1", "all", "auto")]
    assert [row["ratio"] for row in rows if row["threads"] == "1"] == [1.0, 1.0]
    assert f"{threads.BUSY}, median of 3 rounds" in done.output
