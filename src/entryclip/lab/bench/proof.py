"""What a check of `entryclip bench` found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Proof:
    """The outcome of one check."""

    name: str
    held: bool
    detail: str
    skipped: bool = False  # nothing was compared, for the reason in `detail`
