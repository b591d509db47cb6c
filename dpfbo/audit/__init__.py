"""The audit: attacks on the real server code that bound epsilon from below, and checks that find false claims.

The claim is always what an accountant says of the ledger that the audited server wrote, never of its settings.

target       the server under audit, and how a round or a run of it is made again
two_world    many runs with and without one agent's messages, and the scores that tell them apart
bounds       from scores to a lower bound on epsilon, with confidence
tradeoff     the trade-off curve that charged events promise
neighbours   runs with equal randomness that differ in one message: deterministic checks
randomness   the law of the noise and of the choice of S_t
charging     what the ledger says beside what was released
one_run      many canaries in a single run (Steinke, Nasr, Jagielski 2023)
outsourced   which of two neighbouring tables a curator released
reconstruction rows of a table from its release
faults       servers with one thing wrong each, for an audit of the audit
"""
