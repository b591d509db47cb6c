"""Bayesian optimisation outsourced to another party (Kharkovskii, Dai, Low 2020: PO-GP-UCB).

A *curator* holds the inputs and can measure; a *modeler* knows how to optimise. The curator releases a transformed
table once; the modeler runs GP-UCB on it, sends the index of a candidate, and receives a measurement. They share
nothing else: no memory, no seed.
"""
