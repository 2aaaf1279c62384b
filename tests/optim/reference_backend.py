"""A backend of plain torch that carries out the same plans as the compiled one, matrix by matrix, slow and obvious."""

import math

import numpy as np
import torch

import entryclip as ec
from entryclip.optim.kernels.plan import DirectionKind, Operator, ThresholdSource

OPERATORS = {Operator.SMOOTH: ec.smooth_shrinkage, Operator.HARD: ec.hard_clip}


class ReferenceBackend:
    uses_torch = False
    kinds = frozenset({DirectionKind.ADAM})
    takes_half = preserves_rms = frozenset()
    spans_processes = False
    scaled = None
    plans = 0  # how many were carried out

    def __init__(self, plan):
        self.directions = {}

    def run(self, plan):
        ReferenceBackend.plans += 1
        values = np.zeros(plan.clipped)
        for row in range(len(plan.owner)):
            u = self.directions[row] = self._update(plan, row)
            if row >= plan.clipped:
                self._move(plan, row, u)
                continue
            if plan.q is not None:
                magnitudes = u[u != 0].abs()
                values[row] = ec.quantile_abs(magnitudes, plan.q) if len(magnitudes) else 0.0
            if plan.source[row] == ThresholdSource.KNOWN:
                self._clip_and_move(plan, row, plan.threshold[row])
            elif plan.source[row] == ThresholdSource.PROPORTIONAL:
                self._clip_and_move(plan, row, plan.multiple[row] * values[row])
        return values

    def move(self, plan, thresholds):
        for row in np.flatnonzero(plan.source == ThresholdSource.AWAITED):
            self._clip_and_move(plan, row, thresholds[row])

    def _update(self, plan, row):
        c = self._constants(plan, row)
        m, v = (self._entries(plan, row, t) for t in plan.bindings[plan.owner[row]].buffers.values())
        g = c.sign * self._entries(plan, row, plan.gradients[plan.owner[row]])
        m.lerp_(g, c.fresh1)
        v.mul_(c.beta2).addcmul_(g, g, value=c.fresh2)
        return m / (c.a * v.sqrt() + c.b)

    def _clip_and_move(self, plan, row, threshold):
        u = self.directions[row]
        clipped = OPERATORS[plan.operator](u, torch.tensor(np.float32(threshold)))
        self._move(plan, row, torch.add(clipped, u, alpha=0) if plan.propagate else clipped)

    def _move(self, plan, row, u):
        c = self._constants(plan, row)
        self._entries(plan, row, plan.bindings[plan.owner[row]].w).mul_(c.decay).sub_(u, alpha=c.lr)

    def _constants(self, plan, row):
        return plan.constants[0 if len(plan.constants) == 1 else plan.owner[row]]

    def _entries(self, plan, row, tensor):
        start, size = int(plan.start[row]), int(plan.size[row])
        assert math.prod(tensor.shape) >= start + size
        return tensor.detach().view(-1)[start : start + size]
