"""The learning curve of a run as a picture, drawn from its manifests alone."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.run import Run
from tasks.summary import round_summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Summary = Mapping[str, Any]

_HELD_OUT, _ROLLOUT, _REWARD = "#1b4f9c", "#e07b00", "#7a7a7a"
# Title, artifact, metric of the small panels.
_PANELS = [
    ("KL to the reference", "policy", "kl"),
    ("Entropy", "policy", "entropy"),
    ("Groups of zero variance", "advantages", "zero_variance_share"),
    ("Completion length in tokens", "rollouts", "completion_length_mean"),
]


def learning_curve(run: Run) -> bytes:
    """A PNG of the run so far: held-out accuracy with standard errors, accuracy and reward of rollouts, vital signs."""
    return draw_curve(run.config.name, [round_summary(run, number) for number in run.rounds_on_disk()])


def draw_curve(name: str, summaries: Sequence[Summary]) -> bytes:
    """The picture of the rounds in ``summaries`` (see ``tasks.summary``); equal summaries give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    # A figure of its own, without pyplot: no global state, no window, no leak from round to round.
    figure = Figure(figsize=(10, 6.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, len(_PANELS), height_ratios=[1.7, 1])
    top = figure.add_subplot(grid[0, :])
    _main_panel(top, summaries)
    panels = [figure.add_subplot(grid[1, place]) for place in range(len(_PANELS))]
    for panel, (title, artifact, metric) in zip(panels, _PANELS, strict=True):
        rounds, values = _series(summaries, artifact, metric)
        panel.plot(rounds, values, color=_HELD_OUT, **_line(rounds))
        panel.set_title(title, fontsize=9)
        if metric == "zero_variance_share":
            panel.set_ylim(-0.03, 1.03)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    last = max((summary["round"] for summary in summaries), default=0)
    for axes in (top, *panels):
        axes.set_xlim(-0.02 * max(last, 1), max(last, 1) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12 if axes is top else 5))
        axes.set_xlabel("round", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Learning curve of {name}", fontsize=13)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _main_panel(axes: "Axes", summaries: Sequence[Summary]) -> None:
    rounds, accuracy = _series(summaries, "evaluation", "accuracy")
    errors = dict(zip(*_series(summaries, "evaluation", "accuracy_stderr"), strict=True))
    if rounds:
        axes.errorbar(
            rounds,
            accuracy,
            yerr=[errors.get(number, 0.0) for number in rounds],
            color=_HELD_OUT,
            marker="o",
            markersize=5,
            linewidth=2,
            capsize=3,
            zorder=3,
            label="held-out accuracy, greedy (± standard error)",
        )
    rounds, accuracy = _series(summaries, "rewards", "accuracy")
    if rounds:
        axes.plot(rounds, accuracy, color=_ROLLOUT, label="accuracy of rollouts", **_line(rounds))
    lowest, highest = -0.03, 1.03
    rounds, means = _series(summaries, "rewards", "reward_mean")
    if rounds:
        axes.plot(rounds, means, color=_REWARD, linestyle="--", label="mean reward", **_line(rounds))
        lowest, highest = min(lowest, min(means) - 0.03), max(highest, max(means) + 0.03)
    axes.set_ylim(lowest, highest)
    axes.set_ylabel("accuracy, mean reward", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: not labels[place].startswith("held-out"))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], fontsize=9, frameon=False, loc="best")


def _series(summaries: Sequence[Summary], artifact: str, metric: str) -> tuple[list[int], list[float]]:
    """Rounds that have this metric, and its finite values."""
    found = [(summary["round"], summary.get(artifact, {}).get(metric)) for summary in summaries]
    points = [(number, value) for number, value in found if value is not None and math.isfinite(value)]
    return [number for number, _ in points], [value for _, value in points]


def _line(rounds: Sequence[int]) -> dict[str, Any]:
    """A dot a round as long as they can be told apart; a thin line for a long run."""
    if len(rounds) <= 40:
        return {"linewidth": 1.5, "marker": "o", "markersize": 3}
    return {"linewidth": 1.2 if len(rounds) <= 200 else 0.7}
