"""Every command in a console block of the README and of docs/ is run, as it stands or in short.

Each is run by bash in a folder where runs and a user's own files lie, or without it if all that it
does is to start `simsgd`, which then need not be imported again. What takes minutes is shortened by
options of SHORTER, what cannot be run here is in NOT_RUN with its reason.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if not page.name.endswith(".template.md")]
SHORTER = {  # a command's beginning, and what is put behind it; a model that it names stays
    "simsgd train --resume": "--epochs 2",
    "simsgd train --compressor grace:": "--epochs 1 --dataset digits --model mlp",
    "simsgd train": "--epochs 1",
    "simsgd sweep": "--epochs 1 --dataset digits --model mlp --seeds 1",
    "simsgd verify": "--steps 2",
    "simsgd bench": "--quick",
}
NOT_RUN = {  # a command's beginning, and why it is not run
    "pip install": "installs",
    "eval": "changes the shell that it is typed into; the script it asks for is made below",
    'SEEDS="0 1 2" ./run_experiments.sh evidence-': "takes hours, on photographs to be fetched",
    "./run_experiments.sh evidence-": "takes hours, on photographs to be fetched",
    "python docs/evidence": "needs photographs that must be fetched first",
    "simsgd bench scaling": "takes minutes; a test of its own runs it short",
    "simsgd bench network": "needs root on Linux, and takes minutes",
    "simsgd verify --workers 4 --link": "needs root on Linux; test_shaped_links.py does so",
}
ELSEWHERE = (
    "cifar10|libsvm:epsilon|imagenet|ptb|wikitext2"  # data that nobody has without a download
)
NEEDS = {"--tensorboard": "tensorboard", "--launcher": "submitit", "--wandb": "wandb"}
MINE = re.search(r"```python\n(.*?)```", (CHECKOUT / "docs/compressors.md").read_text(), re.DOTALL)[
    1
]
THEIRS = """
class TheirMemory:
    def compensate(self, tensor, name):
        return tensor

    def update(self, tensor, name, compressor, tensor_compressed, ctx):
        pass


class TheirCompressor:
    def compress(self, tensor, name):
        return [tensor.flatten()], tensor.shape

    def decompress(self, tensors, shape):
        return tensors[0].view(shape)
"""


def commands():
    """Return the page and line of every command, and the command, its long lines joined."""
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text[: block.start()].count("\n") + 2
            for command in re.sub(r"\\\n\s*|\n +", " ", block[1]).splitlines():
                for part in command.split(" && "):
                    yield pytest.param(part.strip(), id=f"{page.name}:{line}: {part.strip()[:60]}")


def shortened(command):
    """Return a command that does the same for fewer steps."""
    if "--dataset pydoc" in command:  # an epoch of a text is long
        return re.sub(r" --epochs \d+|$", " --steps 20", command, count=1)
    words = re.sub(r"^(\w+=\S+ )+", "", command)
    for beginning, more in SHORTER.items():
        if words.startswith(beginning):
            options = re.findall(r"--\w+(?: \w+)?", more)
            named = [o for o in ("--model", "--dataset") if f"{o} " in command]
            named += ["--epochs"] if "--steps " in command else []
            kept = [option for option in options if option.split()[0] not in named]
            return " ".join([command, *kept])
    return command


@pytest.fixture(scope="module")
def place(tmp_path_factory, type_in):
    """A folder with two runs, files of a user's own, and `simsgd` on the path."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "bin").mkdir()
    simsgd = folder / "bin/simsgd"
    code = "from simsgd.cli import main; main(prog_name='simsgd')"
    simsgd.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    simsgd.chmod(0o755)
    (folder / "mine.py").write_text(MINE)
    (folder / "theirs.py").write_text(THEIRS)
    for name in ("NAME", "OTHER"):
        run(folder, type_in, f"simsgd train --epochs 1 --workers 4 --name {name} --quiet")
    return folder


def run(folder, type_in, command):
    """Run a command and raise `AssertionError` if it fails."""
    paths = [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    surroundings = {
        **os.environ,
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HOME": str(folder),
    }
    if command.startswith("simsgd ") and not set(command) & set("|&;<>$`*?"):
        code, output = type_in(shlex.split(command)[1:], folder, surroundings)
    else:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=surroundings, check=False, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        code, output = done.returncode, done.stdout
    assert code == 0, f"{command}\n{output}"


@pytest.mark.slow
@pytest.mark.parametrize("command", list(commands()))
def test_a_command_in_the_documentation_runs(place, type_in, command):
    reasons = [why for beginning, why in NOT_RUN.items() if command.startswith(beginning)]
    if reasons:
        pytest.skip(f"not run: {reasons[0]}")
    if re.search(f"--dataset ({ELSEWHERE})", command):
        pytest.skip("not run: needs data that must be fetched first")
    for option, package in NEEDS.items():
        if option in command:
            pytest.importorskip(package)
    if "slurm" in command:
        pytest.skip("not run: needs a Slurm cluster")
    if "runs/sweep" in command and not list(place.glob("runs/sweep*")):
        run(place, type_in, shortened("simsgd sweep --workers 4,16 --compressor none,topk:0.01"))
    run(place, type_in, shortened(command))


def test_what_is_not_run_is_named_for_a_reason_that_holds():
    given = [param.values[0] for param in commands()]
    assert {b for b in NOT_RUN if any(c.startswith(b) for c in given)} == set(NOT_RUN)
    assert [command for command in given if command.startswith("$")] == []


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("simsgd train --prune 0.9", "simsgd train --prune 0.9 --epochs 1"),
        ("A=1 simsgd bench engines", "A=1 simsgd bench engines --quick"),
        ("simsgd list models", "simsgd list models"),
        ("simsgd train --dataset pydoc --epochs 9", "simsgd train --dataset pydoc --steps 20"),
        ("simsgd train --dataset pydoc", "simsgd train --dataset pydoc --steps 20"),
        ("simsgd sweep --model resnet", "simsgd sweep --model resnet --epochs 1 --dataset digits"),
    ],
)
def test_a_long_command_is_shortened_and_stays_the_same(command, short):
    assert shortened(command).removesuffix(" --seeds 1") == short
