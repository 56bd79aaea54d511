"""What a long context costs: state and decode speed of K3's hybrid against attention alone.

    python benchmarks/long_context.py [--tokens 8192 65536 262144] [--steps 8] [--rounds 5]

One small configuration twice: three KDA layers to each MLA layer, and MLA in every layer. For each
length a sequence's state is filled to it, its bytes are held against the arithmetic of `model
audit` (any difference ends the run with an error), and tokens are decoded from there. Latents are
made up: how long a step takes depends on how many there are, not on what they say.

Both models take turns, on one thread; speed is CPU time, the best of the rounds.
"""

from __future__ import annotations

import argparse
import time
from array import array

import torch

from unabridged.model.audit import Audit, audit
from unabridged.model.config import K3Config
from unabridged.model.k3 import K3
from unabridged.model.kda import KDAState
from unabridged.model.state import SequenceState

LAYERS = 8
HYBRID = (4, 8)
"""The layers with MLA, counted from 1."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a long context on this CPU.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8_192, 65_536, 262_144])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    window = max(args.tokens) + args.steps * args.rounds
    models = [K3(small(mla, window)).eval() for mla in (HYBRID, tuple(range(1, LAYERS + 1)))]
    counts = [audit(model.config) for model in models]
    print("tokens    state bytes: hybrid  MLA only  ratio    decoded tokens/s: hybrid  MLA only")
    for tokens in args.tokens:
        states = [filled(model, tokens) for model in models]
        sizes = [check(s, c, tokens) for s, c in zip(states, counts, strict=True)]
        speeds = [0.0, 0.0]
        for _ in range(args.rounds):
            for i, (model, state) in enumerate(zip(models, states, strict=True)):
                speeds[i] = max(speeds[i], decoded_a_second(model, state, args.steps))
        print(
            f"{tokens:<9,} {sizes[0]:>20,} {sizes[1]:>13,}  {sizes[0] / sizes[1]:.3f}"
            f"  {speeds[0]:>24.0f} {speeds[1]:>9.0f}",
            flush=True,
        )


def small(mla: tuple[int, ...], window: int) -> K3Config:
    """The released configuration with small numbers, float32, and MLA in these layers."""
    document = K3Config.released().to_dict()
    text = document["text_config"]
    del document["vision_config"], text["quantization_config"]
    document["dtype"] = "float32"
    text |= {
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "moe_intermediate_size": 64,
        "routed_expert_hidden_size": 128,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "attn_res_block_size": 4,
        "max_position_embeddings": window,
    }
    kda = tuple(layer for layer in range(1, LAYERS + 1) if layer not in mla)
    text["linear_attn_config"] |= {
        "num_heads": 4,
        "head_dim": 64,
        "full_attn_layers": mla,
        "kda_layers": kda,
    }
    return K3Config.from_dict(document)


def filled(model: K3, tokens: int) -> SequenceState:
    """A state as if the model had read so many tokens."""
    state = model.new_state()
    for layer in state.layers:
        if isinstance(layer, KDAState):
            layer.S.copy_(0.1 * torch.randn_like(layer.S))
        else:
            layer.append(torch.randn(tokens, layer.rows.shape[1]))
    state.tokens = array("I", bytes(4 * tokens))
    return state


def check(state: SequenceState, counts: Audit, tokens: int) -> int:
    """The state's bytes, which are what the audit says: else `SystemExit`."""
    held = sum(t.nbytes for name, t in state.to_tensors().items() if name != "tokens")
    wider = torch.float32.itemsize // torch.bfloat16.itemsize  # the audit counts for bfloat16
    wanted = counts.kda_recurrent_bytes + wider * (
        counts.kda_conv_bytes + tokens * counts.latent_bytes_per_token
    )
    if held != wanted:
        raise SystemExit(f"{tokens:,} tokens: the state has {held:,} bytes, the audit {wanted:,}")
    return held


def decoded_a_second(model: K3, state: SequenceState, steps: int) -> float:
    began = time.process_time()
    for _ in range(steps):
        model.step([state], [3])
    return steps / (time.process_time() - began)


if __name__ == "__main__":
    main()
