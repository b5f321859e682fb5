"""Started by torchrun: ``python -m grpo_core.policy.rank_worker FOLDER SOCKET``; a rank of an update (rank.py)."""

from grpo_core.policy.torchrun import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before the imports, which take seconds
    from grpo_core.policy.rank import main

    main()
