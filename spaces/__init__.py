"""Which plans are legal, why others are not, and in what order to look at them."""

from spaces.problem import Problem, check_problem
from spaces.rules import RULES, check, rule_text
from spaces.space import Constraints
from spaces.transformer import TransformerSpace

__all__ = [
    "RULES",
    "Constraints",
    "Problem",
    "TransformerSpace",
    "check",
    "check_problem",
    "rule_text",
]
