"""Promotion: whether a round's policy beats the champion on the held-out prompts beyond noise."""

from grpo_core.promotion.bootstrap import Comparison, compare
from grpo_core.promotion.config import PromotionConfig
from grpo_core.promotion.decide import Decision, cannot_tell, decide, first

__all__ = ["Comparison", "Decision", "PromotionConfig", "cannot_tell", "compare", "decide", "first"]
