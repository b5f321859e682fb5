"""What is known of a source for the record: which bytes, revision or generator its rows came from."""

import hashlib
import re
from pathlib import Path
from typing import Any

from grpo_core.prompts.config import REASONING_GYM_ROWS, SourceConfig, SourceKeys
from grpo_core.prompts.generated import ADDITIONS_VERSION, reasoning_gym_seed, reasoning_gym_version
from grpo_core.prompts.known import REASONING_GYM
from grpo_core.prompts.readers import named_dataset
from grpo_core.prompts.sources import hub_parts, local_path

_BLOCK = 1 << 20
_REVISION = re.compile(r"@([0-9a-f]{40})/")


def source_facts(source: SourceKeys, seed: int) -> dict[str, Any]:
    """What identifies the rows of a source, as plain JSON values.

    Always ``name`` (the label), ``source``, ``adapter``, ``limit`` and ``kind``; then for a

    - file: ``sha256`` and ``bytes``;
    - folder: ``split``, ``subset``, ``files``, ``bytes``, and ``sha256`` over the names and digests of its files;
    - hub data set: ``id``, and ``parts``, each with ``subset``, ``split``, ``rows``, the ``fingerprint`` of `datasets`
      and the ``revision`` (a commit of the hub; null where its cache does not say);
    - generator: ``version``, ``seed`` (its own, which the run's decides) and ``options``.

    Args:
        seed: the run's.

    Raises:
        UserError: the source is not to be had, as for ``load_rows``.
    """
    label = source.label if isinstance(source, SourceConfig) else source.source
    common = {"name": label, "source": source.source, "adapter": source.reads_as, "limit": source.limit}
    return common | _particular(source, seed)


def _particular(source: SourceKeys, seed: int) -> dict[str, Any]:
    if source.source == "additions":
        options = source.additions.model_dump(mode="json")
        return {"kind": "generator", "version": str(ADDITIONS_VERSION), "seed": seed, "options": options}
    if source.source.startswith(REASONING_GYM):
        return {
            "kind": "generator",
            "version": reasoning_gym_version(source.source),
            "seed": reasoning_gym_seed(seed),
            "options": {**source.options, "size": source.limit or REASONING_GYM_ROWS},
        }
    path = local_path(source.source)
    if path is None:
        parts = hub_parts(source)
        return {"kind": "hub", "id": parts[0][0], "parts": [_part(*part) for part in parts]}
    if not path.is_dir():
        return {"kind": "file", "sha256": _sha256(path), "bytes": path.stat().st_size}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = "".join(f"{_sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
    return {
        "kind": "folder",
        "subset": source.subset,
        "split": source.split,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": hashlib.sha256(listing.encode()).hexdigest(),
    }


def _part(name: str, subset: str | None, split: str) -> dict[str, Any]:
    dataset = named_dataset(name, subset, split, on_hub=True)
    # Where its files came from, with the commit in each address.
    addresses = dataset.info.download_checksums or {}
    revisions = {found[1] for address in addresses if (found := _REVISION.search(str(address)))}
    return {
        "subset": subset,
        "split": split,
        "rows": len(dataset),
        "revision": next(iter(revisions)) if len(revisions) == 1 else None,
        "fingerprint": dataset._fingerprint,
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
