"""Runs a real vLLM engine in a process of its own: a job in JSON on standard input, results on the
last line of standard output.

A job: `model`, `options` of `vllm.LLM`, and `steps`, each one of

    {"generate": [[ids], ...], "tokens": N}    greedy; gives tokens, logprobs and cached of each
    {"forget": true}                           empty vLLM's own prefix cache
    {"flip": PATH, "at": BYTE}                 change a byte of a file
    {"settle": true}                           until what is to be saved is on the disk
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.load(sys.stdin)
    from vllm import LLM

    started = time.perf_counter()
    llm = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        disable_log_stats=False,
        **job["options"],
    )
    results = [run(llm, step) for step in job["steps"]]
    counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    llm.llm_engine.engine_core.shutdown()
    done = {
        "steps": results,
        "preemptions": counters.get("vllm:num_preemptions"),
        "block": llm.llm_engine.vllm_config.cache_config.block_size,
        "seconds": time.perf_counter() - started,
    }
    print("\n" + json.dumps(done))


def run(llm: Any, step: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    if "forget" in step:
        return llm.reset_prefix_cache()
    if "flip" in step:
        path = Path(step["flip"])
        data = bytearray(path.read_bytes())
        data[step["at"] % len(data)] ^= 0x40
        path.write_bytes(data)
        return None
    if "settle" in step:
        for save in get_kv_transfer_group()._saving:
            save.result()
        return None
    sampling = SamplingParams(
        temperature=0, max_tokens=step["tokens"], ignore_eos=True, logprobs=0, detokenize=False
    )
    prompts = [{"prompt_token_ids": ids} for ids in step["generate"]]
    began = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - began
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                entry[token].logprob
                for token, entry in zip(
                    output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True
                )
            ],
            "cached": output.num_cached_tokens,
            "seconds": seconds,
        }
        for output in outputs
    ]


if __name__ == "__main__":
    main()
