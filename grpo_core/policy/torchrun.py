"""torchrun that ends with the process that started it: ``python -m grpo_core.policy.torchrun PARENT_PID …``."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the system kill this process when the thread that started it ends, which waits for it. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Runs torchrun with the rest of the command line."""
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):  # it ended before it was watched
        sys.exit(1)
    from torch.distributed.run import main as torchrun

    torchrun(sys.argv[2:])


if __name__ == "__main__":
    main()
