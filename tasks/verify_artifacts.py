"""Proof of a round's artifacts: manifests, the bytes of every file, foreign files, and what each was made from."""

import posixpath
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_core.artifacts import MANIFEST, RETIRED, TIMINGS, Artifact, Manifest
from grpo_core.errors import UserError
from grpo_core.fingerprint import digest_json
from tasks.run import Run
from tasks.stage import InputMissing, Stage
from tasks.verify_report import Report

_COMPANIONS = (MANIFEST, TIMINGS, RETIRED)


def prove_artifacts(report: Report, run: Run, folder: str, number: int, stages: Sequence[Stage]) -> None:
    """Prove all that lies in a folder: the artifacts of these stages, any other with a manifest, and foreign files."""
    claimed = {place: stage for stage in stages for place in stage.folders(number).values()}
    lying = [posixpath.join(folder, name) for name in run.store.files(folder)]
    places = [place for place in claimed if place == folder or place.startswith(f"{folder}/")]
    places += [place for place in _with_manifest(lying) if place not in claimed]
    owned: set[str] = set()
    for place in places:
        artifact = run.artifact(place)
        owned |= {artifact.file(artifact.prefix + name) for name in _COMPANIONS}
        manifest = _manifest(report, artifact, lying)
        if manifest is None:
            if not any(file.startswith(f"{place}/") for file in lying) or artifact.manifest_file not in lying:
                owned |= {file for file in lying if file.startswith(f"{place}/") or file == place}
            continue
        owned |= {artifact.file(name) for name in manifest.files}
        _bytes(report, run, artifact, manifest)
        if place in claimed:
            _made_from(report, run, claimed[place], number, place, manifest)
    for file in lying:
        if file not in owned:
            _foreign(report, file, places)


def _with_manifest(lying: Sequence[str]) -> list[str]:
    """Artifacts by the manifests that lie there."""
    found = []
    for file in lying:
        name = posixpath.basename(file)
        if name == MANIFEST:
            found.append(posixpath.dirname(file))
        elif name.endswith(f".{MANIFEST}"):
            found.append(file.removesuffix(MANIFEST) + "parquet")
    return found


def _manifest(report: Report, artifact: Artifact, lying: Sequence[str]) -> Manifest | None:
    manifest = artifact.manifest()
    if manifest is None:
        if artifact.manifest_file in lying:
            report.add(artifact.location, "its manifest has other bytes than were written")
        else:
            report.unfinished.append(artifact.location)
        return None
    report.checked["artifacts"] += 1
    if digest_json(manifest.parts) != manifest.fingerprint:
        report.add(artifact.location, "its manifest's fingerprint is not that of its parts")
    return manifest


def _bytes(report: Report, run: Run, artifact: Artifact, manifest: Manifest) -> None:
    if artifact.is_retired:
        report.skip("Models that retention removed: their digests are kept, their bytes are gone.")
        return
    rows = 0
    for name, expected in manifest.files.items():
        file = artifact.file(name)
        report.checked["files"] += 1
        try:
            record = run.store.read_record(file)
        except FileNotFoundError:
            report.add(artifact.location, "a file is gone", column=name)
            continue
        report.records[file] = record
        if record != expected:
            report.add(
                artifact.location, "a file has other bytes than its manifest says", column=name,
                stored=expected.sha256, found=record.sha256,
            )  # fmt: skip
        rows += _rows(report, run, artifact, name)
    if rows != manifest.rows:
        report.add(
            artifact.location, "its files have another number of rows than its manifest says", stored=manifest.rows,
            found=rows,
        )  # fmt: skip


def _rows(report: Report, run: Run, artifact: Artifact, name: str) -> int:
    if not name.endswith(".parquet"):
        return 0
    try:
        with run.store.fs.open(run.store.path(artifact.file(name)), "rb") as stream:
            return int(pq.read_metadata(stream).num_rows)
    except (OSError, ValueError, pa.ArrowException) as error:
        report.add(artifact.location, f"a file can't be read ({str(error).splitlines()[0]})", column=name)
        return 0


def _made_from(report: Report, run: Run, stage: Stage, number: int, place: str, manifest: Manifest) -> None:
    """Compare the fingerprint with that of what lies on disk now."""
    if not stage.possible(run, number):
        report.skip("Evaluations whose policy retention removed: what they were made from is not compared.")
        return
    try:
        now = stage.fingerprint(run, number)
    except InputMissing as missing:
        report.add(place, "what it was made from is missing", column=str(missing))
        return
    except UserError as error:
        report.add(place, f"what it was made from can't be told: {error}")
        return
    if manifest.fingerprint != now.digest:
        inputs = manifest.parts.get("inputs", {})
        for name in sorted({*inputs, *now.inputs}):
            if inputs.get(name) != now.inputs.get(name):
                report.add(
                    place, "it was made from another input than lies there", column=name, stored=inputs.get(name),
                    found=now.inputs.get(name),
                )  # fmt: skip
        changed = [part for part in now.difference(manifest.parts).split(", ") if not part.startswith("input ")]
        if changed:
            report.add(place, f"it was made otherwise than the run would now: {', '.join(changed)}")


def _foreign(report: Report, file: str, places: Sequence[str]) -> None:
    folder = posixpath.dirname(file)
    inside = any(folder == place or folder.startswith(f"{place}/") for place in places)
    if inside or folder.count("/") < 2:  # the latter lie loose beside the artifacts
        report.add(folder, "a file that no manifest names", column=posixpath.basename(file))
    elif "/update_checkpoint" not in folder:
        report.skip(f"{folder}: it has no manifest, so nothing vouches for it.")
