"""What Prefect's UI shows of a run: a bar over its rounds and their stages, and a summary of each round.

Shown, never needed: a server that refuses or does not answer stops no round. Each artifact has one key for the run's
life, so that its page shows how it came to be: ``<name>-<id>-progress`` and ``<name>-<id>-round-0007``.
"""

import re
import time
from types import TracebackType
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from flows.stages import stages_of
from tasks.run import Run
from tasks.stage import Listener, listener, set_listener
from tasks.summary import round_summary
from tasks.tracking import Tracker

_BETWEEN_DRAWINGS = 1.0
"""Seconds; each drawing asks the server, and a small round has a dozen stages in as little."""


class RoundArtifacts:
    """Hears the stages of this process, between them and whoever heard them before, while it is open."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # Prefect takes lower-case letters, digits and dashes.
        name = re.sub(r"[^a-z0-9]+", "-", run.config.name.lower()).strip("-") or "run"
        self._key = f"{name}-{run.identity[:8]}"
        self._bar: Any = None  # Prefect types its id as if it might be awaited
        self._next: Listener | None = None
        self._drawn = -_BETWEEN_DRAWINGS

    def __enter__(self) -> "RoundArtifacts":
        self._next = listener()
        set_listener(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_listener(self._next)

    def stage_started(self, stage: str, round_number: int, why: str) -> None:
        if self._next:
            self._next.stage_started(stage, round_number, why)

    def stage_progress(self, stage: str, round_number: int, done: int, total: int) -> None:
        if self._next:
            self._next.stage_progress(stage, round_number, done, total)

    def stage_ended(self, stage: str, round_number: int, seconds: float, cached: bool) -> None:
        if self._next:
            self._next.stage_ended(stage, round_number, seconds, cached)
        names = [found.name for _, found in stages_of(self.run, round_number)]
        if not cached and stage in names and time.monotonic() - self._drawn >= _BETWEEN_DRAWINGS:
            self._draw(round_number - 1 + (names.index(stage) + 1) / len(names), f"round {round_number}: {stage} done")

    def round_done(self, round_number: int, tracker: Tracker) -> None:
        """Put a round's summary beside the bar."""
        self._draw(round_number, f"{round_number} of {self.run.config.rounds} rounds done")
        try:
            create_markdown_artifact(
                markdown(self.run, round_number, tracker),
                key=f"{self._key}-round-{round_number:04d}",
                description=f"Round {round_number} of {self.run.config.name}",
            )
        except httpx.HTTPError:
            return  # the same figures stand in the run folder and in MLflow

    def _draw(self, rounds: float, text: str) -> None:
        self._drawn = time.monotonic()
        percent = max(0.0, min(100.0, 100 * rounds / self.run.config.rounds))
        try:
            if self._bar is None:
                self._bar = create_progress_artifact(percent, key=f"{self._key}-progress", description=text)
            else:
                update_progress_artifact(self._bar, percent, description=text)
        except httpx.HTTPError:
            self._bar = None  # it may have been deleted; the next one is new


def markdown(run: Run, round_number: int, tracker: Tracker) -> str:
    """A round's figures, its stages' seconds, what its gates found and where MLflow shows it, as Markdown."""
    summary = round_summary(run, round_number)
    figures = [
        f"| {part} | {name} | {value:.6g} |"
        for part, metrics in summary.items()
        if isinstance(metrics, dict) and part != "seconds"
        for name, value in metrics.items()
    ]
    seconds = [f"| {part} | {value:.1f} |" for part, value in summary["seconds"].items()]
    return "\n".join(
        [
            f"# {run.config.name}: round {round_number} of {run.config.rounds}",
            "",
            _where(round_number, tracker),
            "",
            f"Run folder: `{run.uri}`",
            "",
            *(f"- **gate**: {finding}" for finding in summary["findings"]),
            "",
            *_table(["artifact", "figure", "value"], figures),
            "",
            *_table(["artifact", "seconds"], seconds),
        ]
    )


def _table(headings: list[str], rows: list[str]) -> list[Any]:
    return [f"| {' | '.join(headings)} |", "|" + " --- |" * len(headings), *rows]


def _where(round_number: int, tracker: Tracker) -> str:
    page = tracker.page_of(round_number)
    return f"[Round {round_number} in MLflow]({page})" if page else f"In MLflow: `{tracker.ui_command}`"
