"""Puts each bug of mutations.txt into a copy of the package, and names those that no test catches.

    python tests/run_mutations.py [WORDS]

runs those whose line holds the words, or all. It takes some seconds for each, and is no test.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutations.txt")
COPIED = ("simsgd", "models", "regimes", "tests", "pyproject.toml", "docs", "README.md")
_LIMIT = 600  # seconds of the tests of one bug; what hangs is caught too
_FAILED = (1, 2)  # exit codes of pytest where tests failed, or could not be collected


@dataclass(frozen=True)
class Mutation:
    """A bug: a text of a file, what takes its place, and the tests that are to see it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @classmethod
    def of(cls, line: str) -> "Mutation":
        """Return the bug of a line."""
        file, old, new, tests = line.split(" | ")
        return cls(file, old, new, tuple(tests.split()))

    def text(self, root: Path) -> str | None:
        """Return the file with the bug; None if the old text is not there once."""
        path = root / self.file
        text = path.read_text("utf-8") if path.exists() else ""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def mutations() -> list[Mutation]:
    """Return all bugs."""
    lines = LIST.read_text("utf-8").splitlines()
    return [Mutation.of(line) for line in lines if line and not line.startswith("#")]


def outcome(mutation: Mutation, root: Path) -> str:
    """Return whether a test fails with the bug in the copy at `root`: caught, NOT CAUGHT, GONE."""
    path, text = root / mutation.file, mutation.text(root)
    if text is None:
        return "GONE"  # the line has changed, and the list is to follow
    sound = path.read_text("utf-8")
    path.write_text(text, "utf-8")
    words = ["-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow and not distributed"]
    tests = [f"tests/{name}" for name in mutation.tests]
    try:
        done = subprocess.run(
            [sys.executable, *words, *tests],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "caught"
    finally:
        path.write_text(sound, "utf-8")
    died = done.returncode < 0  # of memory that it wrote where it must not, for instance
    return "caught" if died or done.returncode in _FAILED else "NOT CAUGHT"


def main() -> int:
    """Run them, and return 1 if some are not caught."""
    chosen = [m for m in mutations() if " ".join(sys.argv[1:]) in f"{m.file} | {m.old} | {m.new}"]
    uncaught = 0
    with tempfile.TemporaryDirectory(prefix="simsgd-mutations-") as folder:
        root = Path(folder)
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, root / name)
        for mutation in chosen:
            label = outcome(mutation, root)
            uncaught += label != "caught"
            print(f"{label}: {mutation.file}: {mutation.old} -> {mutation.new}", flush=True)
    print(f"{len(chosen) - uncaught} of {len(chosen)} are caught")
    return 1 if uncaught else 0


if __name__ == "__main__":
    sys.exit(main())
