"""What a changed config means for a run that exists: which finished stages read the changed keys and run again."""

from collections import defaultdict

from flows.stages import stages_of
from grpo_core.config import RunConfig
from grpo_core.errors import UserError
from tasks.run import Run, config_changes, with_joining_sources
from tasks.stage import InputMissing

_LONGEST = 60  # characters of a value


def describe_changes(run_dir: str, config: RunConfig) -> list[str]:
    """Sentences for the terminal: the changed keys with old and new values, then what runs again and why.

    Empty when the run is new or its config is the same. Reads manifests only: bytes are proven when the run goes on.
    """
    found = config_changes(run_dir, config)
    if not found:
        return []
    config = with_joining_sources(run_dir, config)
    lines = [f"changed: {change.key} from {_short(change.old)} to {_short(change.new)}" for change in found]
    stale = _stale_stages(Run(run_dir, config))
    for (stage, why), rounds in stale.items():
        lines.append(f"runs again: {stage} of {_spans(rounds)} (changed: {why})")
    if stale:
        lines.append("What depends on these runs again, too, where their results differ; everything else stays.")
    return lines


def refuse_to_redo(config: RunConfig, run_dir: str) -> None:
    """Let no schedule make finished rounds again because its config is another one than the run has by now.

    Raises:
        UserError: it would; the sentence names the keys and what to do.
    """
    found = config_changes(run_dir, config)
    stale = _stale_stages(Run(run_dir, with_joining_sources(run_dir, config))) if found else {}
    if stale:
        keys = ", ".join(sorted({change.key for change in found}))
        (stage, _), rounds = next(iter(stale.items()))
        raise UserError(
            f"The config given here differs from the one that '{run_dir}' has by now ({keys}) and would make finished "
            f"rounds again ({stage} of {_spans(rounds)} first); serve the run by its own config (grpo-rounds serve "
            f"{run_dir}), or take this one over knowingly with: grpo-rounds train CONFIG --run-dir {run_dir}"
        )


def _stale_stages(run: Run) -> dict[tuple[str, str], list[int]]:
    stale: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in run.rounds_on_disk():
        for _, stage in stages_of(run, number):
            manifest = run.artifact(list(stage.folders(number).values())[-1]).manifest()
            try:
                fingerprint = stage.fingerprint(run, number)
            except InputMissing:
                continue
            if manifest is not None and manifest.fingerprint != fingerprint.digest and stage.possible(run, number):
                stale[stage.name, fingerprint.difference(manifest.parts)].append(number)
    return stale


def _spans(rounds: list[int]) -> str:
    first, last = rounds[0], rounds[-1]
    if first == last:
        return f"round {first}"
    whole = rounds == list(range(first, last + 1))
    return f"rounds {first} to {last}" if whole else f"rounds {', '.join(map(str, rounds))}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
