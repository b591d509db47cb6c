"""A machine and a suite's findings with round numbers, for tests of runners.bench."""

from __future__ import annotations

from dataclasses import replace

from runners.bench.machine import MachineFacts, OperationRates
from runners.bench.measurement import BenchPanel, Findings, FloorTime, Measurement, Spread

RATES = OperationRates(4e10, 8e10, 1e10, 3e8, 6e8, 5e8, 4e8, 2e8, 250.0)
FACTS = MachineFacts("a processor", 2, 16.0, "Linux", "3.11", "2.13", 1, "cpu", RATES)

FLOOR = FloorTime(0.5, "2 n flops", "arithmetic", {"flops": 2.0})
ONE = Measurement(
    "agents", "dp_fts_de", {"N": 200, "T": 10}, Spread(3.0, 2.0, 4.0, 4),
    {"objective": Spread(9.0, 9.0, 9.0, 1), "message": Spread(2.0, 2.0, 2.0, 1), "fit": Spread(0.0, 0.0, 0.0, 1)},
    Spread(2.5, 2.5, 2.5, 1), 300.0, 400.0, {"message": FLOOR, "fit": FLOOR},
    {"own draw": "exact", "whole run, s": 1.5},
)  # fmt: skip
PANEL = BenchPanel("agents", "against N", "ms", "N", "agents N", memory=True)
FINDINGS = Findings("agents", {"rounds": 10}, [PANEL], [ONE, replace(ONE, cpu=None)], ["a note"], True, {"cores": 2})
