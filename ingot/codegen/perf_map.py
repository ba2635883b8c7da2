"""The names of kernels in machine code, for `perf`: `INGOT_PERF=map`.

Code that a process makes is in no file with symbols. perf looks for its names in
`/tmp/perf-PID.map`: a line "address size name" for each function, in hexadecimal digits. Where code
is loaded, the places of its functions are read from the object files; where a program is made of
it, a line has the name that profilers know its step by. Lines are appended, each in one write,
since Python's own (`-X perf`) go to the same file. A child of a fork has the code of its parent,
and so gets a file with the same lines.
"""

from __future__ import annotations

import logging
import os
import stat
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

log = logging.getLogger("ingot")

VARIABLE = "INGOT_PERF"

IS_ON = os.environ.get(VARIABLE, "") == "map"
"""Whether a map is written. It does not change while the process runs."""


Part = tuple[int, int]
"""The address and the size of a function, or of one that belongs to it."""


class PerfMap:
    """The file of this process, and of those that it forks."""

    def __init__(self, folder: str = "/tmp") -> None:
        self.folder = folder
        self.lines: list[bytes] = []
        self.parts: dict[int, list[Part]] = {}  # of functions without a name yet, by address
        self._file = -1
        self._is_refused = False

    def add(self, addresses: Mapping[str, int], objects: Iterable[bytes]) -> None:
        """Takes functions that were loaded from these object files, and writes what they share."""
        shared = []
        for image in objects:
            functions = functions_of(image)
            begins = {}  # of each section
            for name, section, offset, _ in functions:
                if name in addresses:
                    begins[section] = addresses[name] - offset
                    self.parts[addresses[name]] = []
            for name, section, offset, size in functions:
                part = begins.get(section, -offset) + offset, size
                owner = addresses.get(name.partition(".")[0])  # of "kernel0.body" it is "kernel0"
                if owner is not None:
                    self.parts[owner].append(part)
                elif section in begins:
                    shared.append(line(*part, f"ingot::{name}"))
        self._write(shared)

    def name(self, steps: Sequence[Any], names: Sequence[str | None]) -> None:
        """Writes the kernels among the steps of a program's description. A function that several
        steps run has the name of the first."""
        found = []
        for step, name in zip(steps, names):
            while step[0] == "product":  # cuBLAS's, or else the step within
                step = step[-1]
            if step[0] != "kernel":
                continue
            for part in self.parts.pop(step[1], ()):
                found.append(line(*part, name or "ingot::kernel"))
        self._write(found)

    def follow(self) -> None:
        """Begins the file of a child, which runs its parent's code."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        lines, self.lines = self.lines, []
        self._write(lines)

    def _write(self, lines: Sequence[bytes]) -> None:
        if self._is_refused or not lines:
            return
        self.lines += lines
        try:
            if self._file < 0:
                self._file = _opened(f"{self.folder}/perf-{os.getpid()}.map")
            for text in lines:
                os.write(self._file, text)
        except OSError as error:  # a profile without names is no reason to end a program
            self._is_refused = True
            log.warning("%s: no map for perf is written: %s", VARIABLE, error)


def line(address: int, size: int, name: str) -> bytes:
    """A line of the map."""
    printable = "".join([c if c.isprintable() else " " for c in name])
    return f"{address:x} {size:x} {printable}\n".encode("utf-8", "replace")


def _opened(path: str) -> int:
    """A descriptor of the file, which is the user's own and readable to nobody else.

    /tmp is everybody's: a link is not followed, and a file of somebody else's, or one that has
    another name besides, raises OSError. A file older than the process is an earlier one's.
    """
    try:
        if os.lstat(path).st_mtime < _started() - 2 and os.lstat(path).st_uid == os.getuid():
            os.unlink(path)
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o600)
    facts = os.fstat(file)
    is_own = facts.st_uid == os.getuid() and facts.st_nlink == 1
    if not (is_own and stat.S_ISREG(facts.st_mode)):
        os.close(file)
        raise PermissionError(f"{path} is not this user's alone")
    os.fchmod(file, 0o600)
    return file


def _started() -> float:
    """When this process began, in seconds since 1970."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


# -- object files ----------------------------------------------------------------------------------

_SYMBOL_TABLE, _FUNCTION = 2, 2  # SHT_SYMTAB and STT_FUNC
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def functions_of(image: bytes) -> list[tuple[str, int, int, int]]:
    """(name, number of its section, offset in it, bytes) of each function in an object file, of ELF
    for 64 bits; none of another format."""
    functions: list[tuple[str, int, int, int]] = []
    if image[:6] != b"\x7fELF\x02\x01":
        return functions
    (table,) = struct.unpack_from("<Q", image, 0x28)
    _, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [_SECTION.unpack_from(image, table + k * _SECTION.size) for k in range(count)]
    for _, kind, _, _, begin, length, strings, *_ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[strings][4]
        for at in range(begin, begin + length, _SYMBOL.size):
            name, info, _, section, offset, size = _SYMBOL.unpack_from(image, at)
            if info & 0xF == _FUNCTION and section and size:
                end = image.index(b"\0", names + name)
                functions.append((image[names + name : end].decode(), section, offset, size))
    return functions


# -- of this process -------------------------------------------------------------------------------

_map = PerfMap()

if IS_ON:
    os.register_at_fork(after_in_child=_map.follow)


def add_code(addresses: Mapping[str, int], objects: Iterable[bytes]) -> None:
    """Tells of functions that were loaded from object files; nothing where no map is wanted."""
    if IS_ON:
        _map.add(addresses, objects)


def name_code(steps: Sequence[Any], names: Sequence[str | None]) -> None:
    """Tells what the steps of a program are called; nothing where no map is wanted."""
    if IS_ON:
        _map.name(steps, names)
