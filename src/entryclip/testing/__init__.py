"""The conformance suite: what every operator, threshold rule and optimizer must keep, this package's own and yours.

    from entryclip.testing import check_operator, check_optimizer, check_rule

    def test_mine():
        check_operator(my_operator)
        check_rule(MyRule(0.9))
        check_optimizer(MyOptimizer)

A check raises AssertionError with the law that is broken and the case that breaks it.
"""

from .elements import check_operator, check_rule
from .optimizers import check_optimizer

__all__ = ["check_operator", "check_optimizer", "check_rule"]
