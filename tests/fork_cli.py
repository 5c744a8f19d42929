"""Processes forked from one that has imported the package, so that they start at once."""

import multiprocessing
import os
import sys
import traceback

import torch

_IMPORTED = [
    "tests.kill_runs", "simsgd.cli", "sklearn.datasets", "pandas", "matplotlib.pyplot", "networkx",
    "torchvision", "torch._dynamo", "torch.utils.flop_counter",
]  # fmt: skip


def process(target, *arguments):
    """Return a process that is to call `target`, and a pipe whose other end it is given last."""
    context = _context()
    ours, theirs = context.Pipe()
    return context.Process(target=target, args=(*arguments, theirs)), ours, theirs


def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def type_in(words, folder, surroundings):
    """Return the exit code and all output of `simsgd` with these words, started in a folder."""
    child = _context().Process(target=_type_in, args=(words, str(folder), surroundings))
    child.start()
    child.join()
    output = folder / f"output-{child.pid}"
    text = output.read_text(errors="replace")
    output.unlink()
    return child.exitcode, text


def _type_in(words, folder, surroundings):
    from simsgd.cli import main

    os.chdir(folder)
    os.environ.update(surroundings)
    sys.argv = ["simsgd", *words]
    torch.set_num_threads(1)
    output = os.open(f"output-{os.getpid()}", os.O_CREAT | os.O_WRONLY)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for own in (1, 2):
        os.dup2(output, own)
    try:
        main(words, prog_name="simsgd")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
