"""Public functions that are called with values of other types: one plain line, `SettingError`."""

import pytest

import simsgd

CALLS = {
    "train(workers='4')": "workers must be a whole number, got '4'",
    "plot_results(5)": "run must be a run, a path or several, not int, got 5",
    "plot_results('runs', y=5)": "y must be text, not int, got 5",
    "plot_results('runs', x=5)": "x is not known, got 5; known: ",
    "plot_results([5])": "run must be text or a path, not int, got 5",
    "report(5)": "run must be a run, a path or several, not int, got 5",
    "report('runs', 5)": "output must be text or a path, not int, got 5",
    "results(None)": "run must be a run, a path or several, not NoneType",
    "network(5)": "run must be a run, a path or several, not int, got 5",
    "Run(3)": "run must be text or a path, not int, got 3",
    "Run(None)": "run must be text or a path, not NoneType",
    "Sweep(3)": "folder must be text or a path, not int, got 3",
    "sweep(jobs='x', workers=[2])": "jobs must be a whole number, not str, got 'x'",
    "sweep(workers=[2], model=print)": "model is an object, which the processes of a sweep "
    "cannot make again, got print; name it, as in ./mine.py, or call train for each",
    "sweep(workers=[2], dataset=[3])": "dataset is an object, which the processes of a sweep "
    "cannot make again, got int; name it, as in ./data.py, or call train for each",
    "verify(steps='2')": "steps must be a whole number, not str, got '2'",
    "evaluate(5)": "checkpoint must be text or a path, not int, got 5",
    "generate(5)": "checkpoint must be text or a path, not int, got 5",
    "generate('a', length='x')": "length must be a whole number, not str, got 'x'",
    "generate('a', temperature='x')": "temperature must be a number, not str, got 'x'",
    "advise(5)": "network must be text, not int, got 5",
    "advise([5])": "network must be text, not int, got 5",
    "tune_consensus(workers='4')": "workers must be a whole number, not str, got '4'",
    "tune_consensus(topology=5)": "topology must be text, not int, got 5",
    "tune_consensus(compressor=5)": "compressor must be text, not int, got 5",
    "list_names(5)": "kind must be text, not int, got 5",
    "list_names(['models'])": "kind must be text, not list, got ['models']",
    "list_names('topologies', '4')": "workers must be a whole number, not str, got '4'",
    "bench(None)": "bench must be text, not NoneType",
    "Simulator(5, workers=2, lr=0.1)": "model must be a torch.nn.Module, not int, got 5",
}


@pytest.mark.parametrize(("call", "line"), CALLS.items())
def test_a_value_of_another_type_is_refused_in_one_line(call, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(simsgd.SettingError) as refused:
        eval(f"simsgd.{call}", {"simsgd": simsgd})
    assert str(refused.value).startswith(line)
    assert not list(tmp_path.iterdir())
