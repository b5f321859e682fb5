"""Seeds by content, never by position in a stream, so that any piece of work can be redone alone."""

import hashlib


def hash64(*parts: int | str) -> int:
    """A 64-bit seed from the parts, e.g. ``hash64(run_seed, round, prompt_id, sample_index)``.

    Every part is written with its type and its length before hashing, so ``("1", 23)`` and ``("12", 3)`` differ. A hash
    rather than an offset: neighbouring seeds collide in engines that give child ``i`` of a request ``seed + i``.

    Returns:
        An int in ``[0, 2**64)``; deterministic across processes, machines and Python versions.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(f"{len(text)}|".encode())
        digest.update(text)
    return int.from_bytes(digest.digest(), "big")
