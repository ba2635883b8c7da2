"""Counts what Ingot does with the programs: `python -m tests.conformance [--record] [table]`."""

from __future__ import annotations

import argparse
from collections import Counter

from tests.conformance import tables, trial, verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", help="only this one")
    parser.add_argument("--record", action="store_true", help="ask torch.compile anew")
    options = parser.parse_args()
    chosen = {options.table: tables.namespaces()[options.table]} if options.table else None
    chosen = chosen or tables.namespaces()
    if options.record:
        found = verdicts.recorded() if options.table else {}
        for namespace in chosen.values():
            verdicts.record(namespace.programs, found)
    known = verdicts.recorded()
    print(f"{'namespace':18}{'names':>7}{'programs':>10}{'whole there':>13}{'whole here':>12}")
    for name, namespace in chosen.items():
        counts = _counts(namespace, known)
        row = f"{name:18}{len(namespace.public):>7}{len(namespace.programs):>10}"
        print(f"{row}{counts['there']:>13}{counts['here']:>12}")


def _counts(namespace: tables.Namespace, known: verdicts.Verdicts) -> Counter[str]:
    counts: Counter[str] = Counter()
    for program in namespace.programs:
        verdict = known[program.key]
        counts["there"] += verdict == verdicts.WHOLE
        try:
            trial.check(program, verdict)
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            print(f"{program.key}: {type(error).__name__}: {text}")
        else:
            counts["here"] += verdict == verdicts.WHOLE
    return counts


if __name__ == "__main__":
    main()
