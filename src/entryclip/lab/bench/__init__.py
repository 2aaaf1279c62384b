"""`entryclip bench`: prove on this machine that the optimizers are right, then measure them beside torch's own.

proofs.py   quantiles equal those of the host to the bit, steps equal the plain path's, two runs give the same bits
steps.py    times of optimizer steps on block matrices of GPT-2 small, as ratios to torch's fused step
parts.py    the other parts, by name: everything that is compared with torch, numpy or the paper's listing on a CPU
timing.py   candidates timed in turn, round after round
"""
