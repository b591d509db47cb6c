"""The audit: attacks on the real server code that bound epsilon from below, and checks that find false claims.

The claim is always the epsilon that an accountant computes from the audited server's ledger, never from its settings.

bounds     a lower bound on epsilon, with confidence, from scores
tradeoff   the trade-off curve that charged events promise
fixed_release   noise that makes a release independent of the sum, to compare what lies beside it
server/    replays of a federated server: two worlds, deterministic and statistical checks, whole runs, an independent
           accountant, many canaries in one run; the message path of the private prior, to its whole broadcast
release/   a curator's released table: attacks that tell two neighbouring tables apart, reconstruction of rows, checks
"""
