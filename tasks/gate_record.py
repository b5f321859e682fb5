"""What a round's gates found, as sentences for the terminal and for MLflow; read back from the run folder."""

import json

from tasks.run import Run, round_folder


def gate_findings(run: Run, round_number: int) -> list[str]:
    """One sentence a finding, with the gate and what was done; also where a stop left the round unfinished."""
    try:
        record = json.loads(run.store.read_bytes(round_folder(round_number, "gates/gates.json")))
        return [f"{found['gate']} ({found['action']}): {found['reason']}" for found in record["findings"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
