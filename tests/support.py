"""What tests import from each other: places, and the comparison of two runs."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "configs/tiny.yaml"
DATA = ROOT.parent / "shared/data"


def digests(run: Path) -> dict[str, object]:
    """Every digested file of a run by name, and what each manifest says but for its wall-clock figure."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("manifest.json")) + sorted(run.rglob("*.manifest.json")):
        manifest = json.loads(path.read_bytes())
        del manifest["finished_at"]
        found[str(path.relative_to(run))] = manifest
    return found
