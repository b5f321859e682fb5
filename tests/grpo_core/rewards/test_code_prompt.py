"""The code that a prompt holds, parsed for many responses at a time."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

from grpo_core.rewards.code_prompt import parsed


def test_source_is_parsed_from_many_threads() -> None:
    source = "f(" + ", ".join(str(list(range(40))) for _ in range(200)) + ")\n"

    class Slow:
        """What the garbage collector ends in the midst of parsing, and so lets another thread in."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            for _ in range(50):
                pass

    def parse(_: int) -> bool:
        Slow()
        return parsed(source) is not None

    before, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(10, 1, 1)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(parse, range(16)))
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*thresholds)
