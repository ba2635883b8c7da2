"""`python -m ingot cache`: what lies in the cache, whether it is sound, clearing it, and carrying
it to other machines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ingot.codegen.store import KINDS, Damaged, Entry, Listing, Store
from ingot.errors import CacheError
from ingot.explain.loading import UserError
from ingot.explain.text import plural, size_text
from ingot.kept.kinds import told, unpacked_text
from ingot.kept.portable import listing_of, load_cache, save_cache, stores_of

CACHE = "look after the cache of compiled code"
AS_JSON = "print one document of JSON, and nothing else"
SCHEMA = 1
"""The version of the documents."""
MOST_NAMES = 5
"""Foreign files that are named."""


def add_cache(commands: Any) -> None:
    """Add the command `cache`, with commands of its own."""
    cache = commands.add_parser("cache", help=CACHE, description=CACHE)
    of_cache = cache.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], Outcome], what: str
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = of_cache.add_parser(name, help=what, description=what)
        sub.add_argument("--folder", help="the cache's folder (INGOT_CACHE_DIR, or your own)")
        sub.add_argument(
            "--kind", action="append", choices=list(KINDS), help="only this kind; may be repeated"
        )
        sub.add_argument("--json", action="store_true", help=AS_JSON)
        sub.set_defaults(run=lambda arguments, tools: _run(run, arguments, tools))
        return sub

    command("ls", run_ls, "list its files, the last used first")
    command("clear", run_clear, "remove Ingot's files from it, and nothing else")
    verify = command("verify", run_verify, "read each file; exit status 1 if any is damaged")
    verify.add_argument("--remove", action="store_true", help="remove those that are damaged")
    save = command("save", run_save, "write all that it holds into one file")
    load = command("load", run_load, "put what such a file holds into it")
    for sub in (save, load):
        sub.add_argument("file", metavar="FILE")


class Outcome(NamedTuple):
    """What a command gives: a document for tools, the same as lines, and the exit status."""

    document: dict[str, Any]
    lines: list[str]
    status: int = 0


def _run(
    run: Callable[[argparse.Namespace], Outcome], arguments: argparse.Namespace, tools: Any
) -> int:
    try:
        document, lines, status = run(arguments)
        if arguments.json:
            tools.write({"schema": SCHEMA} | document)
        else:
            for line in lines:
                print(line)
    except BrokenPipeError:
        raise
    except CacheError as problem:
        raise UserError(str(problem)) from None
    except OSError as problem:
        raise UserError(f"{problem.filename}: {problem.strerror}") from None
    return status


def run_ls(arguments: argparse.Namespace) -> Outcome:
    files = []
    for kind, store, listing in _listings(arguments):
        for entry in listing.entries:
            files.append((entry, kind, store))
    if not files:
        print("no files", file=sys.stderr)
    rows, lines = [], []
    for entry, kind, store in sorted(files, key=lambda file: file[0], reverse=True):
        try:
            text = told(store, kind, entry.key)
        except FileNotFoundError:
            continue  # removed by another process
        except (Damaged, OSError) as problem:
            text = _problem(problem)
        age = _age_text(time.time() - entry.last_used)
        lines.append(f"{kind:8}  {size_text(entry.size):>8}  {age:>6}  {entry.key[:12]}  {text}")
        row = {"kind": kind, "key": entry.key, "bytes": entry.size, "last_used": entry.last_used}
        rows.append(row | {"text": text})
    return Outcome({"files": rows}, lines)


def run_clear(arguments: argparse.Namespace) -> Outcome:
    removed: list[Entry] = []
    for _, store, listing in _listings(arguments):
        removed += store.remove((*listing.entries, *listing.partial))
    size = sum([entry.size for entry in removed])
    line = f"removed {plural(len(removed), 'file')}, {size_text(size)}"
    return Outcome({"removed": len(removed), "bytes": size}, [line])


def run_verify(arguments: argparse.Namespace) -> Outcome:
    sound, damaged, foreign, partial = 0, [], [], 0
    lines = []
    for kind, store, listing in _listings(arguments):
        bad = []
        for entry in listing.entries:
            problem = _problem_of(store, kind, entry)
            if problem:
                lines.append(f"{kind}/{entry.name}: {problem}")
                damaged.append({"kind": kind, "name": entry.name, "problem": problem})
                bad.append(entry)
        sound += len(listing.entries) - len(bad)
        partial += len(listing.partial)
        foreign += [f"{kind}/{name}" for name in listing.foreign]
        if arguments.remove:
            store.remove(bad)
    if foreign:
        more = f" and {len(foreign) - MOST_NAMES} more" if len(foreign) > MOST_NAMES else ""
        names = ", ".join(map(ascii, foreign[:MOST_NAMES]))
        lines.append(f"{plural(len(foreign), 'foreign file')}, left alone: {names}{more}")
    if partial:
        lines.append(
            f"{plural(partial, 'file')} half written, by a process that runs or was killed"
        )
    is_removed = bool(arguments.remove and damaged)
    removed = " and removed" if is_removed else ""
    lines.append(f"{plural(sound, 'file')} sound, {len(damaged)} damaged{removed}")
    document = {"sound": sound, "damaged": damaged, "removed": is_removed}
    beside = {"foreign": foreign, "partial": partial}
    return Outcome(document | beside, lines, 1 if damaged else 0)


def run_save(arguments: argparse.Namespace) -> Outcome:
    count = save_cache(arguments.file, kinds=arguments.kind, folder=arguments.folder)
    line = f"saved {plural(count, 'piece')} in {arguments.file}"
    return Outcome({"pieces": count, "file": arguments.file}, [line])


def run_load(arguments: argparse.Namespace) -> Outcome:
    count = load_cache(arguments.file, kinds=arguments.kind, folder=arguments.folder)
    line = f"loaded {plural(count, 'piece')} from {arguments.file}"
    return Outcome({"pieces": count, "file": arguments.file}, [line])


# -- what they have in common ----------------------------------------------------------------------


def _listings(arguments: argparse.Namespace) -> Iterator[tuple[str, Store, Listing]]:
    """Each kind that the arguments name, its store, and what that holds."""
    for kind, store in stores_of(arguments.kind, arguments.folder).items():
        yield kind, store, listing_of(store)


def _problem_of(store: Store, kind: str, entry: Entry) -> str:
    """What is wrong with a file; empty if nothing is."""
    try:
        unpacked_text(store, kind, entry.key)
    except FileNotFoundError:
        pass  # removed by another process
    except (Damaged, OSError) as problem:
        return _problem(problem)
    return ""


def _problem(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return f"it cannot be read: {problem.strerror or problem}"
    return f"damaged: {problem}"


def _age_text(seconds: float) -> str:
    """How long ago, to a digit or two."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
