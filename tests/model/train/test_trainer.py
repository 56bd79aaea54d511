"""Runs: they learn, resume exactly, stop at what is not finite, and agree over processes."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from unabridged.model.chat.tokenizer import Tokenizer
from unabridged.model.k3 import K3
from unabridged.model.moe import Experts, PackedExperts
from unabridged.model.train import trainer as module
from unabridged.model.train.corpus import CorpusError, Mixture, Sessions, held_out
from unabridged.model.train.qat import set_qat
from unabridged.model.train.recipe import Phase, Recipe, RecipeError
from unabridged.model.train.trainer import Trainer, TrainingError, evaluate, last_checkpoint

Make = Callable[..., Trainer]


def weights(model: K3) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_bytes().splitlines()]


def test_a_resumed_run_ends_in_the_same_weights(trainer: Make, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    list(whole.run())
    first = trainer(tmp_path / "parts")
    list(first.run(until=4))
    second = trainer(tmp_path / "parts")
    assert second.step == 4
    assert second.tokens == first.tokens
    list(second.run())
    assert same(weights(whole.model), weights(second.model))
    keys = ("step", "tokens", "loss", "gradient", "rate", "load_excess")
    entries = [[{k: e[k] for k in keys} for e in log(tmp_path / n)] for n in ("whole", "parts")]
    assert entries[0] == entries[1]


def test_the_loss_falls_and_the_log_says_how(
    trainer: Make, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    samples = tuple(held_out(tokenizer, [], copies=6))
    run = trainer(tmp_path, steps=36, held_out=samples, every=18)
    entries = list(run.run())
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[0] == pytest.approx(math.log(512), rel=0.1)
    assert sum(losses[-5:]) / 5 < losses[0] - 1.2
    judged = [entry["held_out"] for entry in entries if "held_out" in entry]
    assert len(judged) == 2
    assert {score["samples"] for score in judged[0].values()} != {0}
    assert log(tmp_path) == entries


def test_old_checkpoints_go_and_a_torn_one_is_not_taken(trainer: Make, tmp_path: Path) -> None:
    list(trainer(tmp_path, every=1).run(until=4))
    names = sorted(p.name for p in tmp_path.glob("*.pt"))
    assert names == ["checkpoint-0000003.pt", "checkpoint-0000004.pt"]
    (tmp_path / "checkpoint-0000009.tmp").write_bytes(b"half")
    assert trainer(tmp_path).step == 4


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_at_the_last_good_checkpoint(
    trainer: Make, tmp_path: Path, where: str
) -> None:
    run = trainer(tmp_path, every=2)
    list(run.run(until=2))
    if where == "loss":
        run.model.language_model.lm_head.weight.data[7] = torch.nan
    else:
        run.model.language_model.lm_head.weight.register_hook(lambda g: g * torch.inf)
    before = weights(run.model)
    with pytest.raises(TrainingError, match=r"step 3: .*checkpoint-0000002\.pt"):
        list(run.run())
    after = weights(run.model)
    assert all(torch.equal(before[n].nan_to_num(), after[n].nan_to_num()) for n in before)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-0000002.pt"
    assert trainer(tmp_path).step == 2


def test_another_recipe_or_model_is_refused(
    trainer: Make, tiny_model: Callable[..., K3], tmp_path: Path
) -> None:
    list(trainer(tmp_path).run(until=1))
    with pytest.raises(TrainingError, match="another recipe"):
        trainer(tmp_path, muon_lr=0.5)
    with pytest.raises(TrainingError, match=r"checkpoint-0000001\.pt: cannot go on"):
        trainer(tmp_path, model=tiny_model(hidden_size=64))


def test_qat_sees_the_weights_that_are_shipped(tiny_model: Callable[..., K3]) -> None:
    """The forward pass under QAT is that of the packed checkpoint, inputs rounded alike."""
    model = tiny_model()
    packed = tiny_model()
    for ours, theirs in zip(model.modules(), packed.modules(), strict=True):
        if isinstance(ours, Experts) and isinstance(theirs, Experts):
            for name in ("w1", "w2", "w3"):
                stored = [pack_and_unpack(matrix) for matrix in getattr(ours, name).detach()]
                getattr(theirs, name).data.copy_(torch.stack(stored))
    tokens = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(0))
    set_qat(model, True)
    rounded = model.hidden(tokens, [90])
    assert any(isinstance(m, Experts) and m.qat for m in model.modules())
    # The packed weights, with inputs rounded by the same rule.
    set_qat(packed, True)
    torch.testing.assert_close(packed.hidden(tokens, [90]), rounded, rtol=0, atol=1e-6)
    set_qat(model, False)
    assert not torch.allclose(model.hidden(tokens, [90]), rounded, atol=1e-4)


def pack_and_unpack(matrix: torch.Tensor) -> torch.Tensor:
    from unabridged.model import mxfp4

    codes, scale = mxfp4.quantize(matrix)
    return mxfp4.unpack(mxfp4.pack(codes), scale, torch.float32)


def test_a_phase_turns_qat_on(trainer: Make, tmp_path: Path) -> None:
    plain = Phase(steps=1, pack_tokens=300, longest=2000, copies=1.0)
    phases = (plain, plain.model_copy(update={"qat": True}))
    run = trainer(tmp_path, phases=phases)
    experts = [m for m in run.model.modules() if isinstance(m, Experts)]
    seen = [all(m.qat for m in experts) for _ in run.run()]
    assert seen == [False, True]
    assert not any(isinstance(m, PackedExperts) for m in run.model.modules())


class Echo(torch.nn.Linear):
    """A head that returns what it is given."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return input


def test_scores_count_what_is_right(
    tokenizer: Tokenizer, tiny_model: Callable[..., K3], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = held_out(tokenizer, [], copies=12)
    model = tiny_model()
    scores = evaluate(model, samples)
    assert sum(score.samples for score in scores.values()) == 12
    assert all(score.whole == 0.0 for score in scores.values())
    # A model that knows each next token scores 1; with one token wrong in one range, just less.
    flat = [t for s in samples for t in [*s.tokens[1:], 0]]
    monkeypatch.setattr(module, "_EVAL_TOKENS", 10**6)

    def oracle(tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(flat), 512).float()

    monkeypatch.setattr(model, "hidden", oracle)
    monkeypatch.setattr(model.language_model, "lm_head", Echo(1, 1))
    assert {(s.tokens, s.exact, s.whole) for s in evaluate(model, samples).values()} == {
        (1.0, 1.0, 1.0)
    }
    start = samples[0].exact[0][0]
    flat[start - 1] = 511
    spoilt = evaluate(model, samples)[samples[0].family]
    assert spoilt.whole < 1.0
    assert 0 < spoilt.exact < 1.0


# --- recipes and data ---------------------------------------------------------------------------


def test_rates_rise_then_fall_by_a_cosine() -> None:
    phase = Phase(steps=500, pack_tokens=1, longest=1, copies=1.0)
    recipe = Recipe(muon_lr=1.0, adam_lr=1.0, warmup=0.02, final_lr=0.1, phases=(phase, phase))
    rates = [recipe.rate(step) for step in range(1000)]
    assert rates[:20] == [pytest.approx((i + 1) / 20) for i in range(20)]
    assert rates[20] == 1.0
    assert rates[510] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1, abs=1e-4)
    assert all(a >= b for a, b in pairwise(rates[20:]))
    assert recipe.phase(499) is recipe.phases[0]
    assert recipe.phase(500) is recipe.phases[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "Invalid JSON"),
        (b'{"muon_lr": 0.1, "adam_lr": 0.1, "phases": []}', "phases"),
        (b'{"muon_lr": 0.1, "adam_lr": 0.1, "phase": []}', "phase: Extra inputs"),
        (b'{"muon_lr": "x", "adam_lr": 0.1, "phases": []}', "muon_lr"),
    ],
)
def test_a_bad_recipe_names_file_and_field(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_bytes(text)
    with pytest.raises(RecipeError, match=f"recipe.json: .*{message}"):
        Recipe.read(path)
    with pytest.raises(RecipeError, match=r"nowhere\.json: No such file"):
        Recipe.read(tmp_path / "nowhere.json")


def session(text: str, split: str = "train") -> bytes:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    return json.dumps({"family": "f", "split": split, "messages": messages}).encode()


def test_sessions_come_from_files_by_split(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = [session("a"), session("b", "test"), session("c")]
    path = tmp_path / "part-1.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n" + session("cut off")[:40])
    sessions = Sessions([path], "train")
    assert [s["messages"][0]["content"] for s in (sessions[0], sessions[1])] == ["a", "c"]
    assert len(sessions) == 2
    with pytest.raises(CorpusError, match=r"nowhere\.jsonl: No such file"):
        Sessions([tmp_path / "nowhere.jsonl"], "train")
    path.write_bytes(session("a") + b"\n[1]\n")
    with pytest.raises(CorpusError, match=r"part-1\.jsonl: line 2: not a session"):
        Sessions([path], "train")


def test_a_pack_depends_on_step_and_number_only(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "part.jsonl"
    path.write_bytes(b"".join(session(f"text {i} " + "x" * i) + b"\n" for i in range(300)))
    phase = Phase(steps=50, pack_tokens=2000, longest=250, copies=0.4)
    recipe = Recipe(muon_lr=1.0, adam_lr=1.0, phases=(phase,))
    mixture = Mixture(recipe, tokenizer, Sessions([path], "train"))
    again = Mixture(recipe, tokenizer, Sessions([path], "train"))
    packs = [mixture.pack(step, number) for step in range(20) for number in range(2)]
    assert packs == [again.pack(step, number) for step in range(20) for number in range(2)]
    tokens = {True: 0, False: 0}
    for pack in packs:
        for sample in pack.samples:
            tokens[sample.family == "f"] += len(sample)
            assert sample.family != "f" or len(sample) <= 250
    assert 0.3 < tokens[False] / (tokens[True] + tokens[False]) < 0.55
    phase = Phase(steps=1, pack_tokens=9, longest=5, copies=0.0)
    short = recipe.model_copy(update={"phases": (phase,)})
    mixture = Mixture(short, tokenizer, Sessions([path], "train"))
    with pytest.raises(CorpusError, match="none has 5 tokens"):
        mixture.pack(0, 0)
    with pytest.raises(CorpusError, match="there are none"):
        Mixture(recipe, tokenizer, Sessions([], "train"))


# --- processes ----------------------------------------------------------------------------------

SCRIPT = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
sys.path.insert(0, {here!r})
from conftest import trainer, tokenizer, tiny_model
torch.set_num_threads(1)
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
if world > 1:
    dist.init_process_group("gloo", init_method="file://" + str(folder / "meet"), rank=rank, world_size=world)
make = trainer.__wrapped__(tokenizer.__wrapped__(), tiny_model.__wrapped__())
run = make(folder / "run", steps=int(sys.argv[4]), packs=2)
print("ready", flush=True)
for entry in run.run():
    print("step", flush=True)
print("saved", run.step, flush=True)
"""


def start(folder: Path, rank: int, world: int, steps: int) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    script = textwrap.dedent(SCRIPT.format(here=str(Path(__file__).parent)))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(rank), str(world), str(folder), str(steps)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Each takes one pack of every step. Sums over processes round in another order."""
    one = [start(tmp_path / "one", 0, 1, 5)]
    two = [start(tmp_path / "two", rank, 2, 5) for rank in range(2)]
    for process in one + two:
        process.communicate(timeout=120)
        assert process.returncode == 0
    a, b = (torch.load(last_checkpoint(tmp_path / n / "run") or "") for n in ("one", "two"))
    assert a["tokens"] == b["tokens"]
    for name, tensor in a["model"].items():
        torch.testing.assert_close(b["model"][name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    losses = [[e["loss"] for e in log(tmp_path / n / "run")] for n in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_stop_saves_first(tmp_path: Path) -> None:
    process = start(tmp_path, 0, 1, 10_000)
    assert process.stdout is not None
    while process.stdout.readline() != "step\n":
        pass
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    step = int(out.split()[-1])
    assert step < 10_000
    assert last_checkpoint(tmp_path / "run") == tmp_path / f"run/checkpoint-{step:07}.pt"
    assert [e["step"] for e in log(tmp_path / "run")] == list(range(1, step + 1))
