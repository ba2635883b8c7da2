"""`ingot.cache_info`: what the cache holds, and what this process did with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingot.codegen.store import KINDS, Store, cache_folder, store_in


@dataclass(frozen=True)
class KindInfo:
    """One kind of files in the cache.

    `files` and `bytes` are what is there, and `most_files` and `most_bytes` where the longest
    unused begin to go. `oldest_use` and `newest_use` are seconds since the epoch, None where there
    is no file. `found`, `made` and `not_kept` are what this process did: how many it found, how
    many it made and kept, and how often it kept none, as (reason, count).
    """

    name: str
    title: str
    files: int
    bytes: int
    most_files: int
    most_bytes: int
    oldest_use: float | None
    newest_use: float | None
    found: int
    made: int
    not_kept: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CacheInfo:
    """What the cache holds, and what this process did with it: `info["programs"]` is a `KindInfo`.

    `folder` is None where nothing is kept. `problem` says why it cannot be used, if so.
    """

    folder: Path | None
    kinds: tuple[KindInfo, ...]
    problem: str = ""

    def __getitem__(self, name: str) -> KindInfo:
        """What is told of a kind. Raises KeyError for what is none."""
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise KeyError(f"{name!r} is none of {', '.join(KINDS)}")

    def __str__(self) -> str:
        lines = [f"cache in {self.folder}" if self.folder else "no cache: INGOT_CACHE_DIR is empty"]
        if self.problem:
            lines.append(f"  it cannot be used: {self.problem}")
        for kind in self.kinds:
            lines.append(
                f"  {kind.title}: {kind.files} of {kind.most_files} files, "
                f"{kind.bytes / 2**20:.1f} of {kind.most_bytes / 2**20:.0f} MiB; "
                f"this process found {kind.found}, made {kind.made}"
            )
            for reason, count in kind.not_kept:
                lines.append(f"    not kept, {count} times: {reason}")
        return "\n".join(lines)


def cache_info() -> CacheInfo:
    """What the cache of compiled code holds, by kind, and what this process found, made and did not
    keep.

    It reads the names and sizes of files, in the folder that `INGOT_CACHE_DIR` names, and changes
    nothing. No error is raised for a folder that is missing or cannot be read: `problem` of the
    result says what is wrong with it.
    """
    folder, kinds, problem = cache_folder(), [], ""
    for name in KINDS:
        store = store_in(name)
        if store.folder is not None:
            folder = store.folder.parent  # it was chosen when the store was first asked for
        try:
            kinds.append(_info(name, store))
        except OSError as error:
            problem = str(error)
            kinds.append(_info(name, store, is_readable=False))
    return CacheInfo(folder, tuple(kinds), problem)


def _info(name: str, store: Store, is_readable: bool = True) -> KindInfo:
    entries = store.listing().entries if is_readable else ()
    uses = [entry.last_used for entry in entries]
    total = sum([entry.size for entry in entries])
    counts = store.counts
    return KindInfo(
        name,
        KINDS[name],
        len(entries),
        total,
        store.most_files,
        store.most_bytes,
        min(uses, default=None),
        max(uses, default=None),
        counts.found,
        counts.made,
        tuple(counts.not_kept.most_common()),
    )
