"""What an artifact was made from, as one hash: by it a stage knows its own work again, and says what has changed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_json(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a stage depends on, and its hash. ``config`` and ``inputs`` are kept to say later what has changed."""

    stage: str
    round: int
    version: int
    config: Mapping[str, Any]
    inputs: Mapping[str, str]

    @property
    def digest(self) -> str:
        return digest_json(asdict(self))

    def difference(self, other: Mapping[str, Any]) -> str:
        """In words, how the fingerprint parts stored in a manifest differ from these."""
        mine: dict[str, Any] = json.loads(canonical_json(asdict(self)))
        changed = [f"config {key}" for key in _changed(mine["config"], other.get("config", {}))]
        changed += [f"input {key}" for key in _changed(mine["inputs"], other.get("inputs", {}))]
        if mine["version"] != other.get("version"):
            changed.append("the stage's own version")
        return ", ".join(changed) or "another stage or round"


def _changed(mine: Any, other: Any, prefix: str = "") -> list[str]:
    if not (isinstance(mine, dict) and isinstance(other, dict)):
        return [] if mine == other else [prefix.rstrip(".")]
    keys = sorted({*mine, *other})
    return [name for key in keys for name in _changed(mine.get(key), other.get(key), f"{prefix}{key}.")]
