"""tmp"""
from collections.abc import Sequence
from typing import Any
import numpy as np
from grpo_core.estimate.shapes import Shape
from grpo_core.estimate.trace import Held, trace_microbatch
from grpo_core.policy.batching import TrainingRollout, microbatches
from grpo_core.policy.config import UpdateConfig
from grpo_core.policy.form import exceeds_window
from grpo_core.policy.logprobs import LogprobForm
def largest_microbatch(model_config: Any, shape: Shape, update: UpdateConfig, groups: int, group_size: int, lengths: Sequence[tuple[int, int]]) -> Held:
    from grpo_core.policy.layers import recompute_layers
    text = model_config.get_text_config()
    found=[]
    for p, c in lengths:
        form = LogprobForm(not exceeds_window(text, p + c), True, getattr(text, "final_logit_softcapping", None), shape.crossover)
        r=[TrainingRollout(prompt_id=str(g),prompt_ids=np.zeros(p,np.int64),completion_ids=np.zeros(c,np.int64),old_logprobs=np.zeros(c,np.float32),advantage=0.) for g in range(groups) for _ in range(group_size)]
        b=microbatches(r,update.tokens_per_microbatch,shape.crossover if form.shared_prefix else None)[0]
        found.append(trace_microbatch(model_config,b,form,prepare=recompute_layers if update.gradient_checkpointing else None))
    return max(found,key=lambda h:h.most)
