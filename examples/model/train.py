"""Train the example checkpoint on the CPU and export it in Hugging Face's format.

    python train.py --steps 2000              # the length of the shipped checkpoint's training; more is better
    python train.py --steps 2000 --resume     # goes on after a stop, with another number of threads if wanted

SIGTERM ends it after the step in progress with a checkpoint, as does the planned end.

The learning rate and the curriculum are functions of the progress, which is the share of --steps or of --minutes done. A
batch is a function of the seed and the step's number, so a resumed run sees the batches that it would have seen.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from data import Stage, load_text, make_batch
from evaluate import batch_recall, bits_per_byte
from model import Llama, Shape
from optim import make_optimisers

HERE = pathlib.Path(__file__).parent

# Short and dense first: heads that match a key form on many near facts, and then learn to reach further.
CURRICULUM = (
    Stage(until=0.10, context=128, rows=32, recall=0.8, facts=(2, 5), scattered=(0, 3), tail=(2, 2), answer_weight=4),
    Stage(until=0.60, context=256, rows=16, recall=0.6, facts=(3, 9), scattered=(0, 3), tail=(3, 8), answer_weight=4),
    Stage(until=0.70, context=512, rows=8, recall=0.5, facts=(4, 14), scattered=(0, 8), tail=(4, 12), answer_weight=5),
    Stage(until=0.80, context=1024, rows=4, recall=0.5, facts=(4, 20), scattered=(0, 12), tail=(6, 14), answer_weight=6),
    Stage(until=1.00, context=2048, rows=2, recall=0.5, facts=(4, 28), scattered=(0, 12), tail=(8, 16), answer_weight=8),
)
WARM_UP, DECAY = 0.01, 0.3  # shares of the training: linear up, constant, linear down to 0


def learning_rate_factor(progress: float) -> float:
    return min(1.0, progress / WARM_UP, (1.0 - progress) / DECAY)


def stage_at(progress: float) -> Stage:
    return next(stage for stage in CURRICULUM if progress < stage.until or stage is CURRICULUM[-1])


def write_atomically(path: pathlib.Path, write) -> None:
    """`write(temporary path)`, then a rename, so that a reader never sees half a file."""
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    os.replace(temporary, path)


def config(s: Shape) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": s.context,
        "rms_norm_eps": s.eps,
        # Both the older and the newer place of the RoPE base.
        "rope_theta": s.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
        "pretraining_tp": 1,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "decant": {"speed_depth": s.speed_layers / s.layers, "speed_anchors": 1, "speed_pivot": "transient"},
    }


def export(model: Llama, folder: pathlib.Path) -> None:
    """model.safetensors in bf16, config.json and generation_config.json."""
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    write_atomically(folder / "model.safetensors", lambda path: save_file(weights, path, metadata={"format": "pt"}))
    (folder / "model.safetensors").chmod(0o644)
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": False}
    for name, content in (("config.json", config(model.shape)), ("generation_config.json", generation)):
        write_atomically(folder / name, lambda path, c=content: path.write_text(json.dumps(c, indent=2) + "\n"))


def loss_of(model: Llama, batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.from_numpy(batch.inputs), batch.prompt)
    first = max(0, batch.prompt - 1)
    targets, weights = torch.from_numpy(batch.targets[:, first:]), torch.from_numpy(batch.weights[:, first:])
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return (loss * weights.flatten()).sum() / weights.sum().clamp_min(1.0)


def report(model: Llama, text: np.ndarray, stage: Stage) -> str:
    """Quick held-out figures at the stage's context."""
    rng = np.random.default_rng(7)
    figures = [f"bpb {bits_per_byte(model, text, stage.context, 8 * 1024 // stage.context * 2):.3f}"]
    for name, speed in (("full", False), ("speed", True)):
        batches = (make_batch(rng, text, dataclasses.replace(stage, recall=1.0), speed) for _ in range(6))
        figures.append(f"recall {name} {np.nanmean([batch_recall(model, b) for b in batches]):.2f}")
    return " ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--minutes", type=float, help="length of the training as time")
    length.add_argument("--steps", type=int, help="length of the training as steps of about 4,096 tokens")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --work")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--speed-share", type=float, default=0.5, help="share of batches under SPEED")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="where the model is exported to")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/decant-model")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path.home() / ".cache/decant-model/run")
    parser.add_argument("--save-every", type=float, default=3.0, help="minutes between checkpoints and exports")
    parser.add_argument("--report-every", type=int, default=200, help="steps between reports")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    train_text, held_out = load_text(args.cache)
    model = Llama()
    optimisers = make_optimisers(model, args.muon_lr, args.adam_lr)
    rates = [[group["lr"] for group in o.param_groups] for o in optimisers]
    done = {"step": 0, "tokens": 0, "seconds": 0.0}
    state_file = args.work / "state.pt"
    if args.resume:
        state = torch.load(state_file, weights_only=False)
        model.load_state_dict(state["model"])
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        done = state["done"]
    else:
        export(model, args.out)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(train_text)} bytes of text, from {done}", flush=True)

    def save() -> None:
        state = {"model": model.state_dict(), "optimisers": [o.state_dict() for o in optimisers], "done": done}
        write_atomically(state_file, lambda path: torch.save(state, path))
        export(model, args.out)

    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    last_save, mean = time.monotonic(), None
    while not stopped:
        progress = done["step"] / args.steps if args.steps else done["seconds"] / (60 * args.minutes)
        if progress >= 1:
            break
        began = time.monotonic()
        stage, factor = stage_at(progress), learning_rate_factor(progress)
        rng = np.random.default_rng([args.seed, done["step"]])
        batch = make_batch(rng, train_text, stage, speed=rng.random() < args.speed_share)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, group_rates in zip(optimisers, rates, strict=True):
            for group, rate in zip(optimiser.param_groups, group_rates, strict=True):
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        done["step"] += 1
        done["tokens"] += batch.inputs.size
        done["seconds"] += time.monotonic() - began
        if done["step"] % args.report_every == 0:
            took = f"{done['seconds'] / 60:.1f} min {done['tokens'] / 1e6:.2f} M tokens"
            print(f"step {done['step']} {took} progress {progress:.3f} context {stage.context} loss {mean:.3f} "
                  f"{report(model, held_out, stage)}", flush=True)
        if time.monotonic() - last_save > 60 * args.save_every:
            save()
            last_save = time.monotonic()
    save()
    print(f"{'stopped' if stopped else 'finished'}: {done}", flush=True)


if __name__ == "__main__":
    main()
