"""MLflow's pages in a real browser: a run, its curves, a round with its table of rollouts, its report and its traces.

With GRPO_ROUNDS_SCREENSHOTS set to a folder, what was seen is kept there.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command
from production import Production
from support import mlflow_record

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
sync_api = pytest.importorskip("playwright.sync_api")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Pages:
    """MLflow's pages of one experiment, opened one after another in one tab."""

    def __init__(self, page: "sync_api.Page", experiment: str, runs: dict[str, str], shots: Path) -> None:
        self.page, self.experiment, self.runs, self.shots = page, experiment, runs, shots

    def open(self, run: str | None, part: str = "") -> "sync_api.Page":
        self.page.goto("about:blank")  # the address differs after the # only, which alone loads nothing
        place = f"runs/{self.runs[run]}{part}" if run else "runs"
        self.page.goto(f"{self.experiment}/{place}", wait_until="domcontentloaded")
        return self.page

    def see(self, *texts: str | re.Pattern[str], frame: str | None = None) -> None:
        """Wait until each of these is to be seen."""
        where = self.page.frame_locator(frame) if frame else self.page
        for text in texts:
            where.get_by_text(text).first.wait_for()

    def keep(self, name: str) -> None:
        self.page.screenshot(path=self.shots / f"{name}.png")


@pytest.fixture(scope="module")
def mirrored(
    finished_run: Path, command: Command, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """The tiny run, mirrored to a real MLflow server; the run and the server's address."""
    production = Production(tmp_path_factory.mktemp("browser"))
    run = production.home / "run"
    shutil.copytree(finished_run, run)
    place = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{production.home}/mlflow.db", "MLFLOW_WORKERS": "1"}
    with production.running("mlflow-server", **place):
        production.await_health("mlflow-server")
        uri = production.environment("worker")["MLFLOW_TRACKING_URI"]
        done = command("track", run, MLFLOW_TRACKING_URI=uri)
        assert done.returncode == 0, done.stdout + done.stderr
        yield run, uri


@pytest.fixture(scope="module")
def pages(mirrored: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    from mlflow import MlflowClient

    _, uri = mirrored
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("grpo-rounds").experiment_id
    runs = {found.info.run_name: found.info.run_id for found in client.search_runs([experiment])}
    shots = Path(os.environ.get("GRPO_ROUNDS_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(120_000)
        yield Pages(page, f"{uri}/#/experiments/{experiment}", runs, shots)
        browser.close()


def test_the_run_is_in_the_list_and_its_page_has_its_config_and_figures(pages: Pages) -> None:
    pages.open(None)
    pages.see("tiny", "Run Name")
    pages.open("tiny")
    pages.see("It is the truth; rebuild this record with", "round-0001", "round-0002", "eval/accuracy", "learning_rate")
    pages.keep("run")


def test_the_curves_are_drawn(pages: Pages) -> None:
    page = pages.open("tiny", "/model-metrics")
    search = page.get_by_placeholder("Search metric charts")
    search.fill("reward_mean")
    pages.see(re.compile("reward_mean"))
    # Each point of a curve is a mark of its own: one for each of the two rounds.
    curve = page.locator(".js-plotly-plot .scatterlayer .trace").first
    curve.wait_for(state="attached")
    assert curve.locator(".point").count() == 2
    pages.keep("curves")


def test_a_round_shows_its_rollouts_as_a_table(pages: Pages) -> None:
    page = pages.open("round-0002", "/artifacts/rollouts_table.json")
    pages.see("View as table", "rollout_id", "completion", re.compile("^0002/"))
    assert page.get_by_role("checkbox").first.is_checked()
    pages.keep("table")


def test_a_round_shows_its_report(pages: Pages) -> None:
    pages.open("round-0002", "/artifacts/report.html")
    pages.see("tiny, round 2", "Best and worst of each group", "mean reward", frame="iframe")
    pages.keep("report")


def test_a_round_shows_its_traces_with_what_the_checks_say(pages: Pages, mirrored: tuple[Path, str]) -> None:
    run, uri = mirrored
    traces = mlflow_record(run, uri)["round-0002"]["traces"]
    assert traces
    page = pages.open("round-0002", "/traces")
    pages.see(f"{len(traces)} of {len(traces)}", "Assessments", "advantage", "verdict")
    page.get_by_text(re.compile("^What is ")).first.click()
    pages.see("Inputs / Outputs", "completion")
    pages.keep("traces")
