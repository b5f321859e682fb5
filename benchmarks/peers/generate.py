"""A contestant of ``benchmarks.peers``: the rollouts alone, by transformers' own ``generate``."""

import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers.work import TEMPERATURE, prompt_ids, tell, told_work


def main() -> None:
    """All completions of a round in one call, as the other contestants sample them; the last round is told."""
    work = told_work()
    tokenizer = AutoTokenizer.from_pretrained(work.model, padding_side="left", local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32, local_files_only=True).eval()
    for number in range(1, work.rounds + 1):
        batch = tokenizer.pad({"input_ids": prompt_ids(tokenizer, work.sums(number))}, return_tensors="pt")
        began = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                **batch,
                do_sample=True,
                temperature=TEMPERATURE,
                top_p=1.0,
                top_k=0,
                max_new_tokens=work.new_tokens,
                num_return_sequences=work.group,
                pad_token_id=tokenizer.pad_token_id,
            )
        seconds = time.perf_counter() - began
    new = out[:, batch["input_ids"].shape[1] :]
    ends = torch.isin(new, torch.tensor(model.generation_config.eos_token_id))
    lengths = torch.where(ends.any(1), ends.int().argmax(1) + 1, new.shape[1])
    tell({"rollouts": seconds}, int(lengths.sum()))


if __name__ == "__main__":
    main()
