"""Ledgers of charges that differ in z alone, and their lines."""

import dataclasses
import hashlib
import json

from dpfbo.privacy.ledger import Charge, Ledger

ZS = [2.0, 1.0, 1.5, 3.0, 2.5]


def charge(t, z=1.0, **changes):
    named = hashlib.sha256(b"%d" % t).hexdigest()
    return dataclasses.replace(Charge(t, 0.35, z, 0.5, 0.5, named), **changes)


def charged(path, zs=ZS):
    ledger = Ledger(path)
    for t, z in enumerate(zs):
        ledger.charge(charge(t, z))
    return path


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def rewrite(path, k, **values):
    lines = lines_of(path)
    lines[k] = json.dumps({**json.loads(lines[k]), **values}).encode() + b"\n"
    path.write_bytes(b"".join(lines))
