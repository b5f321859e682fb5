"""What MLflow shows of the refused prompts: two tables and a bar chart, made from the run's ``rejected.parquet``."""

import io
from typing import TYPE_CHECKING

from grpo_core.prompts.filters import REASONS

if TYPE_CHECKING:
    import pandas as pd

_ROWS_OF_EACH = 50  # refused rows shown of one reason and source; the Parquet file has all
_COLOURS = ["#1b4f9c", "#e07b00", "#3a8f5c", "#a23b72", "#7a7a7a", "#c9a227", "#4aa3c4", "#8c564b"]
_SOURCES_NAMED = len(_COLOURS)


def rejected_reasons(rejected: "pd.DataFrame") -> "pd.DataFrame":
    """A row for each reason and source: how many rows, and the first of them."""
    firsts = {f"first_{column}": (column, "first") for column in ("source_row", "prompt", "detail")}
    groups = rejected.groupby(["reason", "source"], sort=True)
    return groups.agg(rows=("reason", "size"), **firsts).reset_index()


def rejected_rows(rejected: "pd.DataFrame") -> "pd.DataFrame":
    """The first refused rows of each reason and source, with what each was refused for."""
    columns = ["reason", "source", "source_row", "detail", "prompt", "gold"]
    return rejected.groupby(["reason", "source"], sort=True).head(_ROWS_OF_EACH)[columns].reset_index(drop=True)


def draw_rejected(name: str, kept: int, rejected: "pd.DataFrame") -> bytes:
    """A PNG: a bar for each reason, parted by source, with its count; equal tables give equal bytes.

    Args:
        name: the run's.
        kept: rows that were not refused.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    totals = rejected["source"].value_counts(sort=True)
    largest = sorted(totals.index, key=lambda source: (-totals[source], source))
    sources = largest if len(largest) <= _SOURCES_NAMED else [*largest[: _SOURCES_NAMED - 1], "others"]
    filed = rejected["source"].where(rejected["source"].isin(sources), "others")
    counts = rejected.groupby(["reason", filed]).size()
    reasons = [reason for reason in REASONS if reason in set(rejected["reason"])]

    figure = Figure(figsize=(9, 2 + 0.42 * max(1, len(reasons))), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(reasons))
    ends = [0] * len(reasons)
    for source, colour in zip(sources, _COLOURS, strict=False):
        widths = [int(counts.get((reason, source), 0)) for reason in reasons]
        axes.barh(places, widths, left=ends, color=colour, height=0.65, label=source)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end in zip(places, ends, strict=True):
        axes.annotate(f"{end:,}", (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(places, [reason.replace("_", " ") for reason in reasons], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends, default=1) * 1.12)
    axes.set_xlabel("rows refused", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(sources) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")
    figure.suptitle(f"Prompts of {name}: {kept:,} kept, {len(rejected):,} refused", fontsize=12)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()
