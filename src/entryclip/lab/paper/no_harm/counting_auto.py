"""`CountingAuto`: the rule `Auto`, which also counts what it does to the matrices it is given."""

from dataclasses import dataclass, field

import torch

from ....arrays import Array
from ....auto_threshold import Auto, Decision
from ....efficiency import Operator
from ....thresholds import State


@dataclass
class Actions:
    """What a rule did in a run. A matrix-step is one matrix in one step."""

    steps: int = 0
    steps_changed: int = 0  # in which any entry was changed
    entries: int = 0  # over all steps
    entries_changed: int = 0
    matrix_steps: int = 0
    matrix_steps_clipped: int = 0  # to which the operator was applied
    matrix_steps_guarded: int = 0  # of which the guard alone changed an entry

    def __post_init__(self) -> None:
        self._changed = False  # in the step under way

    def add(self, changed: torch.Tensor, clips: torch.Tensor) -> None:
        """Count matrices: `changed` (..., m, n) says which entries are, `clips` (..., 1, 1) where the operator acts."""
        self.entries += changed.numel()
        self.entries_changed += int(changed.sum())
        self.matrix_steps += clips.numel()
        self.matrix_steps_clipped += int(clips.sum())
        self.matrix_steps_guarded += int((changed.any(-1).any(-1)[..., None, None] & ~clips).sum())
        self._changed |= bool(changed.any())

    def end_step(self) -> None:
        """Count the step under way, after all of its matrices."""
        self.steps += 1
        self.steps_changed += self._changed
        self._changed = False


@dataclass(frozen=True)
class CountingAuto(Auto):
    """`Auto` with the same results to the bit, for matrices of torch; `actions` belongs to one run.

    The kernels of `fused=True` know `Auto` alone. So an optimizer with this rule takes the plain path, which differs
    from them in rounding.

    The counts are the caller's object: a rule is shared by all parameters of a group and has no state of its own.
    """

    actions: Actions = field(default_factory=Actions, compare=False)
    _decisions: list[Decision] = field(default_factory=list, compare=False, repr=False)  # of the call under way

    def decide(self, seen: Array, operator: Operator, shape: tuple[int, int]) -> Decision:
        """Decide as `Auto` does, and note it for the count."""
        decision = super().decide(seen, operator, shape)
        self._decisions[:] = [decision]
        return decision

    def clip(self, x: Array, operator: Operator, state: State) -> tuple[Array, State]:
        """Clip as `Auto` does, and count what has changed."""
        before = x.clone()
        y, state = super().clip(x, operator, state)
        self.actions.add(y != before, self._decisions[0].clips)
        return y, state
