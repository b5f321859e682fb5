"""The live view of a training run: a row a round, and a progress bar inside long stages."""

from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tasks.run import Run
from tasks.summary import round_summary

# Heading in two lines, artifact, metric, format. The whole table fits into 80 characters.
COLUMNS: list[tuple[str, str, str, str]] = [
    ("held-\nout", "evaluation", "accuracy", "{:.1%}"),
    ("avg\n@k", "evaluation", "avg_at_*", "{:.0%}"),
    ("roll-\nouts", "rewards", "accuracy", "{:.1%}"),
    ("rwd\nmean", "rewards", "reward_mean", "{:.3f}"),
    ("rwd\nstd", "rewards", "reward_std", "{:.3f}"),
    ("zero\nvar.", "advantages", "zero_variance_share", "{:.0%}"),
    ("\nKL", "policy", "kl", "{:.4f}"),
    ("clip\nratio", "policy", "clip_ratio", "{:.3f}"),
    ("entr.", "policy", "entropy", "{:.3f}"),
    ("len.", "rollouts", "completion_length_mean", "{:.1f}"),
]
SECONDS = [("gen", "rollouts"), ("rew", "rewards"), ("upd", "policy"), ("eval", "evaluation")]
LEGEND = (
    "held-out (greedy), avg@k (held-out, sampled), rollouts: share answered right; rwd: reward; zero var.: groups "
    "whose rewards are all equal; KL to the start and entropy in nats a token; len. in tokens; the rest in seconds."
)

STAGE_WORDS = {
    "initial_policy": "loading the starting policy",
    "filter_prompts": "filtering prompts",
    "plan_round": "planning",
    "generate_rollouts": "generating rollouts",
    "sample_groups": "sampling groups",
    "score_rewards": "scoring rewards",
    "track_difficulty": "tracking difficulty",
    "compute_advantages": "computing advantages",
    "apply_gates": "looking at the gates",
    "update_policy": "updating the policy",
    "evaluate_policy": "evaluating",
    "promote_policy": "comparing with the champion",
}


def cells(summary: dict[str, Any]) -> list[str]:
    """The text of a round's row; a dash where the round has no such figure."""
    row = [str(summary["round"])]
    for _, artifact, metric, layout in COLUMNS:
        metrics = summary.get(artifact, {})
        value = next((metrics[name] for name in metrics if fnmatchcase(name, metric)), None)
        row.append("-" if value is None else layout.format(value))
    seconds = summary["seconds"]
    return [*row, *(f"{seconds[artifact]:.0f}" if artifact in seconds else "-" for _, artifact in SECONDS)]


def make_table(summaries: list[dict[str, Any]]) -> Table:
    """The table of rounds as rich draws it."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for heading in ("\nrd", *(heading for heading, *_ in COLUMNS), *(f"{name}\ns" for name, _ in SECONDS)):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(*cells(summary))
    return table


class Display:
    """Listens to the stages of this process and draws. Without a terminal it prints one plain line a round."""

    def __init__(self, console: Console, rounds: int) -> None:
        self.console = console
        self.rounds = rounds
        self.summaries: list[dict[str, Any]] = []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def _render(self) -> Group:
        return Group(make_table(self.summaries), self._progress) if self.summaries else Group(self._progress)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()
        if self.summaries:
            self.console.print(make_table(self.summaries))
            self.console.print(LEGEND, style="dim")

    def round_complete(self, run: Run, number: int) -> None:
        self.summaries.append(round_summary(run, number))
        if not self.console.is_terminal:
            columns = (heading.replace("-\n", "-").replace("\n", " ").strip() for heading, *_ in COLUMNS)
            headings = ["round", *columns, *(f"{name} s" for name, _ in SECONDS)]
            pairs = zip(headings, cells(self.summaries[-1]), strict=True)
            self.console.print("; ".join(f"{name} {value}" for name, value in pairs if value != "-"), soft_wrap=True)
        for finding in self.summaries[-1]["findings"]:
            self.console.print(f"round {number}: gate {escape(finding)}", style="yellow", soft_wrap=True)
        if sentence := self.summaries[-1]["champion"]:
            self.console.print(f"round {number}: {escape(sentence)}", soft_wrap=True)

    def stage_started(self, stage: str, round_number: int, why: str) -> None:
        words = STAGE_WORDS.get(stage, stage)
        self._progress.reset(self._task, description=f"round {round_number}/{self.rounds}: {words}", total=None)
        if why and why != "not finished":
            self.console.print(f"round {round_number}: {stage} runs again, {escape(why)}", soft_wrap=True)

    def stage_progress(self, stage: str, round_number: int, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def stage_ended(self, stage: str, round_number: int, seconds: float, cached: bool) -> None:
        self._progress.update(self._task, description=f"round {round_number}/{self.rounds}: {stage} done", total=None)
