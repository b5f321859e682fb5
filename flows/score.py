"""``grpo-rounds score``: any reward on any JSONL, before a run spends a rollout on it."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from grpo_core.errors import UserError
from grpo_core.rewards.score import RewardConfig
from grpo_core.rewards.score_file import score_file


def score_session(file: Path, reward: str, as_json: bool, out: Console) -> None:
    """Print a row for each row of the file as it is scored, then the count of every verdict."""
    from flows.cli import echo_json

    verdicts: Counter[str] = Counter()
    for identifier, found in score_file(file, RewardConfig(name=reward)):
        verdicts[found.verdict.value] += 1
        if as_json:
            echo_json(
                {
                    "id": identifier,
                    "reward": found.reward,
                    "verdict": found.verdict.value,
                    "seconds": round(found.seconds, 4),
                    "extracted": found.extracted,
                    "components": dict(found.components),
                    "detail": found.detail,
                }
            )
        else:
            shown = "  none" if found.reward is None else f"{found.reward:6.3f}"
            answer = "" if found.extracted is None else escape(" ".join(found.extracted.split())[:60])
            out.print(
                f"{identifier:<24} {shown}  {found.verdict.value:<10} {found.seconds:7.4f} s  {answer}", soft_wrap=True
            )
    if not verdicts:
        raise UserError(f"{file} has no rows; write one JSON object with a response on each line.")
    if not as_json:
        out.print(", ".join(f"{count} {name}" for name, count in sorted(verdicts.items())))
