"""The filters on real data: ``python -m benchmarks.filters TRAIN=EVAL [TRAIN=EVAL ...]``, files of one kind in each pair.

``gsm8k/train.jsonl=gsm8k/test.jsonl math/train.jsonl=math/math500.jsonl`` of the folder ``../shared/data`` are the
default. A column ``solution`` is a worked solution, against which golds are checked by the math reward. Prompts are
turned to ids by the tiny model's byte tokenizer. Peak memory is that of this process, without the reward's workers.
"""

import resource
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from grpo_core.prompts.config import DataConfig, SourceConfig
from grpo_core.prompts.filters import REASONS, FilteredPrompts, filter_prompts
from grpo_core.prompts.gold_check import GoldCheck
from grpo_core.prompts.sources import load_rows
from grpo_core.rewards.config import RewardConfig
from grpo_core.tiny import byte_tokenizer

DATA = Path(__file__).resolve().parents[2] / "shared/data"
PAIRS = ["gsm8k/train.jsonl=gsm8k/test.jsonl", "math/train.jsonl=math/math500.jsonl"]
