"""Data files that are made to break a reader: small on disk, huge unpacked, deep, or no files at all."""

import bz2
import gzip
import io
import struct
import zipfile
import zlib

import numpy as np

GIGABYTES = 3 * 2**30  # a bomb unpacks to more than this


def npy(shape, dtype="<f8", body=b"", version=(1, 0)):
    """An array's file, whose header may declare more than its body holds."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(header)) + header + body


def npz(method=zipfile.ZIP_DEFLATED, **members):
    """A zip of arrays; a member is an array or the bytes of its file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            if not isinstance(content, bytes):
                one = io.BytesIO()
                np.save(one, content, allow_pickle=True)
                content = one.getvalue()
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def zip_of(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def zip_bomb(name, size):
    """A zip with one member of zeros."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
    return buffer.getvalue()


def gzip_bomb(size, head=b""):
    """Zeros behind `head`, as gzip streams one after another."""
    one = gzip.compress(bytes(16 * 2**20), 9)
    return gzip.compress(head) + one * (size // (16 * 2**20) + 1)


def bz2_bomb(size):
    one = bz2.compress(bytes(45_000_000))
    return one * (size // 45_000_000 + 1)


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind, name, *parts, shape=(1, 1)):
    flags = element(6, struct.pack("<II", kind, 0))
    return element(14, flags + element(5, struct.pack("<ii", *shape)) + element(1, name.encode()) + b"".join(parts))


def deep_cells(depth, names):
    """A MATLAB file whose variables are cells in cells in cells."""
    inner = matrix(6, "", element(9, struct.pack("<d", 1.0)))
    head = len(matrix(1, "")) - 8
    for _ in range(depth):  # the lengths of the same parts, from the inside
        flags = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, b"")
        assert len(flags) == head
        inner = element(14, flags + inner)
    return HEADER + b"".join(matrix(1, name, inner) for name in names)


def compressed_mat(size, name):
    """A MATLAB file whose one variable unpacks to `size` bytes of zeros."""
    packer = zlib.compressobj(9)
    content = packer.compress(struct.pack("<II", 14, size))
    for _ in range(size // 2**20):
        content += packer.compress(bytes(2**20))
    content += packer.flush()
    return HEADER + struct.pack("<II", 15, len(content)) + content
