"""The conformance suite: laws that every operator, threshold rule and optimizer obeys, this package's and your own.

    from entryclip.testing import check_operator, check_optimizer, check_rule

    def test_mine():
        check_operator(my_operator)
        check_rule(MyRule(0.9))
        check_optimizer(MyOptimizer)

A check raises an AssertionError that names the law and the case that breaks it.
"""

from .operator_laws import check_operator
from .optimizer_laws import check_optimizer
from .rule_laws import check_rule

__all__ = ["check_operator", "check_optimizer", "check_rule"]
