"""Writes ingot/ops/index.py, which says in which file the record of an op is:

python -m tests.ops.index
"""

from __future__ import annotations

import textwrap
from importlib import import_module
from pathlib import Path

from ingot import ops

INDEX = Path(ops.__file__).parent / "index.py"
HEAD = '''"""Which family has the records of an op, by the names of functions, without `aten::`.

`python -m tests.ops.index` writes this file.
"""

NAMES = {
'''


def families() -> list[str]:
    """The names of the files that have records."""
    found = [path.stem for path in INDEX.parent.glob("*.py")]
    return sorted(set(found) - {"__init__", "index", "op"})


def text() -> str:
    """What the file has to be."""
    lines = [HEAD]
    for family in families():
        names = set()
        for record in import_module(f"ingot.ops.{family}").OPS:
            for overload in record.overloads:
                names.add(overload._schema.name.removeprefix("aten::"))
        rows = textwrap.wrap(" ".join(sorted(names)), 88)
        lines.append(f'    "{family}": """\n')
        lines += [f"        {row}\n" for row in rows]
        lines.append('    """,\n')
    return "".join([*lines, "}\n"])


if __name__ == "__main__":
    INDEX.write_text(text(), "utf-8")
