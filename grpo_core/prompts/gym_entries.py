"""The child that makes a reasoning-gym data set: ``python -m grpo_core.prompts.gym_entries NAME SIZE SEED OPTIONS``.

Several sets choose from Python sets, whose order is another one in each process, or ask the module ``random``. So the
entries of a seed are the same only in an interpreter whose hashes and random numbers are fixed, which a running one
can't become any more. One JSON object a line goes out: ``question``, ``gold``, and ``entry`` as a Python literal.
"""

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grpo_core.errors import UserError
from grpo_core.rewards.reasoning_gym import NO_ANSWER

# Where a set has no answer of its own, since many are right, its entries show one here.
_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
_REPOSITORY = Path(__file__).resolve().parents[2]


def gym_entries(name: str, size: int, seed: int, options: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Each entry of a set as ``question``, ``gold`` and ``entry``; equal for equal arguments.

    Raises:
        UserError: the set fails while it is made.
    """
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "grpo_core.prompts.gym_entries", name, str(size), str(seed), json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
    ) as child:
        assert child.stdout is not None
        why = "its process was lost"
        try:
            for line in child.stdout:
                entry = json.loads(line)
                if "failed" in entry:
                    why = entry["failed"]
                    break
                yield entry
            if child.wait():
                raise UserError(f"data.source: reasoning-gym can't make '{name}' ({why}); take another of its sets.")
        finally:
            child.kill()


def main() -> None:
    """Writes the entries."""
    import reasoning_gym

    name, size, seed, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)  # a library that prints must not end up among the entries
    random.seed(int(seed))
    try:
        for entry in reasoning_gym.create_dataset(name, size=int(size), seed=int(seed), **json.loads(options)):
            kept = _plain(entry)
            line = {"question": kept["question"], "gold": _gold(kept), "entry": repr(kept)}
            print(json.dumps(line), file=answers, flush=True)
    except Exception as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        raise SystemExit(1) from error


def _gold(entry: Mapping[str, Any]) -> str:
    if entry["answer"] is not None:
        return str(entry["answer"])
    shown = next((entry["metadata"][key] for key in _EXAMPLES if entry["metadata"].get(key)), None)
    if shown is None:
        return NO_ANSWER
    return shown if isinstance(shown, str) else json.dumps(shown)


def _plain(value: Any) -> Any:
    """The value in Python's own types, which a literal can hold: subclasses (enums, numpy's) become what they are.

    Anything else becomes text: a fraction among the variables of gsm_symbolic is there for show, no scorer reads it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=repr)  # a literal of it would have the order of its hashes
    for collection in (list, tuple):
        if isinstance(value, collection):
            return collection(_plain(part) for part in value)
    for scalar in (str, bool, int, float):
        if isinstance(value, scalar) and not (isinstance(value, float) and not math.isfinite(value)):
            return scalar(value)
    return None if value is None else str(value)


if __name__ == "__main__":
    main()
