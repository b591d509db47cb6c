"""A search of this process's memory for masked numbers. It imports nothing of the library."""

import os
import sys
from dataclasses import dataclass

import numpy as np

_CHUNK = 1 << 24
_WORD = 8


@dataclass(frozen=True)
class Seen:
    """The result of a scan.

    counts: occurrences of each word. shared: occurrences in shared memory. bytes: number read. unreadable: names of
    mappings that were not read in full. modules: imported in this process.
    """

    counts: np.ndarray
    shared: np.ndarray
    bytes: int
    unreadable: set[str]
    modules: set[str]


def masked(words: np.ndarray, mask: int) -> np.ndarray:
    """Words masked, so that a process that must not know them can get them."""
    return words.view(np.uint64) ^ np.uint64(mask)


def scan(actor: object, words: np.ndarray, mask: int) -> Seen:
    """Count masked 8-byte words at all addresses of all readable mappings except the libraries' read-only files.

    No word is ever unmasked here: windows of the memory, chosen by 16 bits of each word, are masked and compared.
    """
    low = words.astype(np.uint16) ^ np.uint16(mask & 0xFFFF)
    likely = np.zeros(1 << 16, dtype=bool)
    likely[low] = True
    counts, shared = np.zeros(len(words), dtype=np.int64), np.zeros(len(words), dtype=np.int64)
    read, unreadable = 0, set()
    buffer = np.empty(_CHUNK + _WORD - 1, dtype=np.uint8)  # a word may cross the end of a chunk
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    for start, end, rights, name in _mappings():
        for at in range(start, end, _CHUNK):
            window = memoryview(buffer)[: end - at]
            try:
                n = os.preadv(memory, [window], at)
            except OSError:
                n = 0
            if n < len(window):
                unreadable.add(name)
            found = _count(buffer[:n], words, mask, likely)
            counts += found
            shared += found * (rights[3] == "s")
            read += min(n, _CHUNK)
    os.close(memory)
    return Seen(counts, shared, read, unreadable, set(sys.modules))


def _mappings() -> list[tuple[int, int, str, str]]:
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, rights, _, _, _, *name = line.split()
            start, end = (int(a, 16) for a in addresses.split("-"))
            only_a_file = name and name[0].startswith("/") and rights[1] == "-" and rights[3] == "p"
            if rights[0] == "r" and not only_a_file:
                found.append((start, end, rights, " ".join(name)))
    return found


def _count(memory: np.ndarray, words: np.ndarray, mask: int, likely: np.ndarray) -> np.ndarray:
    """The number of occurrences of each word, at any byte."""
    counts = np.zeros(len(words), dtype=np.int64)
    for odd in (0, 1):
        pairs = memory[odd:]
        at = np.flatnonzero(likely[pairs[: len(pairs) // 2 * 2].view(np.uint16)]) * 2 + odd
        at = at[at + _WORD <= len(memory)]
        windows = memory[at[:, None] + np.arange(_WORD)].view(np.uint64)[:, 0] ^ np.uint64(mask)
        counts += (windows[:, None] == words).sum(0)
    return counts


def resident() -> int:
    """The physical memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
