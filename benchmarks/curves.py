"""Learning curves of every estimator and every named loss on the toy task: ``python -m benchmarks.curves [FOLDER]``.

Each recipe of ``benchmarks/toy.py`` trains a tiny transformer with three seeds. Two tables are printed, in Markdown,
and two pictures drawn into FOLDER (default: docs): curves-advantages.png and curves-losses.png. About five minutes on
one core. The task says whether an algorithm learns and shows its habits; which one is best for a language model it does
not say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.toy import ADVANTAGES, LOSSES, Learned, Recipe, train

DOCS = Path(__file__).resolve().parents[1] / "docs"
SEEDS = (0, 1, 2)
GOAL = 0.8  # of the greatest reward, which is 1
COLUMNS = 4
BLUE, GREY = "#1b4f9c", "#9a9a9a"


def main(
    folder: Annotated[Path, typer.Argument(help="Where the pictures go.")] = DOCS,
    rounds: Annotated[int, typer.Option(min=6, help="Rounds of each run.")] = 30,
) -> None:
    """Trains, prints the tables and draws the pictures."""
    console = Console()
    for title, recipes, name in (
        ("estimator", ADVANTAGES, "curves-advantages.png"),
        ("loss", LOSSES, "curves-losses.png"),
    ):
        found = _train_all(recipes, rounds, title)
        console.print(_table(title, found), soft_wrap=True)
        _draw(found, recipes, folder / name)


def _train_all(recipes: Mapping[str, Recipe], rounds: int, title: str) -> dict[str, list[Learned]]:
    jobs = [(name, seed) for name in recipes for seed in SEEDS]
    found: dict[str, list[Learned]] = {name: [] for name in recipes}
    for name, seed in track(jobs, description=title, console=Console(stderr=True)):
        found[name].append(train(recipes[name], seed, rounds))
    return found


def _table(title: str, found: Mapping[str, list[Learned]]) -> Table:
    """First and last three rounds, and for each seed the round in which the goal was first reached."""
    table = Table(box=box.MARKDOWN)
    for heading in (title, "first", "last", f"rounds to {GOAL}", "rise in s.e., least"):
        table.add_column(heading, no_wrap=True)
    for name, runs in found.items():
        ends = [(run.curve[:3].mean(), run.curve[-3:].mean()) for run in runs]
        first, last = np.mean(ends, axis=0)
        reached = [np.flatnonzero(run.curve >= GOAL) for run in runs]
        table.add_row(
            name,
            f"{first:.2f}",
            f"{last:.2f}",
            ", ".join(str(hits[0] + 1) if hits.size else "–" for hits in reached),
            f"{min(run.rise()[1] for run in runs):.0f}",
        )
    return table


def _draw(found: Mapping[str, list[Learned]], recipes: Mapping[str, Recipe], path: Path) -> None:
    """Small multiples: the mean over seeds with the band from least to greatest.

    Behind it, dashed, the mean of the first recipe that has the same sampler.
    """
    lines = -(-len(found) // COLUMNS)
    figure = Figure(figsize=(9, 0.7 + 1.55 * lines), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, COLUMNS, sharex=True, sharey=True, squeeze=False)
    compared = {recipe.sampler: name for name, recipe in reversed(recipes.items())}
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, (name, runs) in zip(panels.flat, found.items(), strict=False):
        curves = np.array([run.curve for run in runs])
        rounds = np.arange(1, curves.shape[1] + 1)
        base = np.mean([run.curve for run in found[compared[recipes[name].sampler]]], axis=0)
        axes.plot(rounds, base, color=GREY, linewidth=1, linestyle="--")
        axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(rounds, curves.mean(axis=0), color=BLUE, linewidth=1.8)
        axes.set_title(name, fontsize=10)
        axes.set_ylim(0.3, 1.03)
        axes.set_yticks([0.4, 0.6, 0.8, 1.0])
        axes.set_xlim(1, rounds[-1])
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=9, labelbottom=True)
        axes.spines[["top", "right"]].set_visible(False)
    dashed = " or ".join(name for name in found if name in compared.values())
    figure.suptitle(f"Reward by round, mean and range of {len(SEEDS)} seeds; dashed: {dashed}", fontsize=11)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    typer.run(main)
