"""Held-out bits per byte and long-range recall of the checkpoint, with full visibility and under SPEED.

    python evaluate.py               # the shipped checkpoint; writes evaluation.json
    python evaluate.py --self-test   # the compact SPEED run equals the full-depth run under the mask that defines SPEED
"""

import argparse
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from data import BOS, load_text
from model import Llama, Shape, speed_mask

HERE = pathlib.Path(__file__).parent


def load_checkpoint(folder: pathlib.Path) -> Llama:
    """The exported weights in fp32, in the shape that config.json states."""
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    model = Llama(
        Shape(
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            ffn=config["intermediate_size"],
            layers=layers,
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            context=config["max_position_embeddings"],
            rope_theta=config["rope_parameters"]["rope_theta"],
            eps=config["rms_norm_eps"],
            speed_layers=round(config["decant"]["speed_depth"] * layers),
        )
    )
    model.load_state_dict({name: w.float() for name, w in load_file(folder / "model.safetensors").items()})
    return model.eval()


@torch.no_grad()
def batch_recall(model: Llama, batch) -> float:
    """Share of the answers of a recall batch whose four digits are all the most likely ones."""
    logits = model(torch.from_numpy(batch.inputs), batch.prompt)
    first = max(0, batch.prompt - 1)
    right = np.zeros(batch.targets.shape, bool)
    right[:, first:] = logits.argmax(-1).numpy() == batch.targets[:, first:]
    answers = np.flatnonzero(batch.weights > 1).reshape(-1, 4)  # of the flattened batch: four digits each
    answers = answers[answers[:, 0] % batch.targets.shape[1] >= first]
    return float(right.reshape(-1)[answers].all(1).mean()) if len(answers) else float("nan")


@torch.no_grad()
def bits_per_byte(model: Llama, text: np.ndarray, context: int, windows: int, prompt: int = 0, skip: int = 0) -> float:
    """Mean over windows of the text, of the bytes from `skip` on; with a prompt under SPEED, of those it decodes."""
    total, count = 0.0, 0
    for start in np.linspace(0, len(text) - context, windows).astype(int):
        target = torch.from_numpy(text[start : start + context].astype(np.int64))
        tokens = torch.cat((torch.tensor([BOS]), target[:-1]))[None]
        logits = model(tokens, prompt)[0].float()
        target = target[context - len(logits) :]
        drop = max(0, skip - (context - len(logits)))
        total += F.cross_entropy(logits[drop:], target[drop:], reduction="sum").item()
        count += len(target) - drop
    return total / count / math.log(2)


@torch.no_grad()
def shipped_recall(model: Llama, path: pathlib.Path, speed: bool) -> dict:
    """Exact answers of recall.jsonl by the distance of the fact.

    Greedy decoding gives the right four digits exactly if each is the most likely one after the right ones before it, so
    one pass over prompt and answer decides. Under SPEED the answer is decoded: its bytes are of class D.
    """
    bins: dict[str, list[bool]] = {}
    for line in path.read_text().splitlines():
        item = json.loads(line)
        prompt, answer = item["prompt"], item["answer"]
        tokens = torch.tensor([[BOS, *prompt.encode(), *answer.encode()[:-1]]])
        length = 1 + len(prompt)
        logits = model(tokens, length if speed else 0)[0, -len(answer) :]
        right = logits.argmax(-1).tolist() == list(answer.encode())
        distance = len(prompt) - prompt.index(prompt[-3:])
        low = distance // 500 * 500
        bins.setdefault(f"{low}-{low + 499}", []).append(right)
    every = [r for rights in bins.values() for r in rights]
    by_distance = {k: [sum(v), len(v)] for k, v in sorted(bins.items(), key=lambda kv: int(kv[0].split("-")[0]))}
    return {"accuracy": sum(every) / len(every), "items": len(every), "right_of_by_distance": by_distance}


@torch.no_grad()
def self_test() -> None:
    """Random weights, fp64: compact rows above layer K against all rows at full depth under `speed_mask`."""
    torch.manual_seed(0)
    model = Llama().double()
    for p in model.parameters():
        p.add_(torch.randn_like(p) * 0.05)
    tokens = torch.randint(1, 256, (2, 96))
    tokens[:, 0] = BOS
    length = tokens.shape[1]
    for prompt in (2, 3, 50, 95, 96):
        compact = model(tokens, prompt)
        x = model.model.embed_tokens(tokens)
        for depth, layer in enumerate(model.model.layers):
            mask = speed_mask(prompt, length) if depth >= model.shape.speed_layers else None
            x = layer(x, model.cos[:length], model.sin[:length], mask)
        full = F.linear(model.model.norm(x), model.model.embed_tokens.weight)[:, prompt - 1 :]
        error = (compact - full).abs().max().item()
        assert compact.shape == full.shape and error < 1e-5 * full.abs().max().item(), (prompt, error)
        # What a prompt token says can reach the decoded rows through the lower layers only, and does.
        changed = tokens.clone()
        changed[:, 1] = (changed[:, 1] + 1) % 256
        assert prompt == 2 or (model(changed, prompt) - compact).abs().max() > 0
    plain = model(tokens)
    changed = tokens.clone()
    changed[:, 60] = (changed[:, 60] + 1) % 256
    assert torch.equal(model(changed)[:, :60], plain[:, :60]), "not causal"
    print("self-test passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=HERE)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/decant-model")
    parser.add_argument("--windows", type=int, default=59, help="windows of 2,048 bytes of the held-out text")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return
    model = load_checkpoint(args.checkpoint)
    _, text = load_text(args.cache)
    half = model.shape.context // 2
    result = {
        "held_out_bits_per_byte": {
            "full": bits_per_byte(model, text, 2 * half, args.windows),
            "full_second_half": bits_per_byte(model, text, 2 * half, args.windows, skip=half),
            "speed_second_half": bits_per_byte(model, text, 2 * half, args.windows, prompt=half + 1, skip=half),
        },
        "recall": {
            "full": shipped_recall(model, HERE / "recall.jsonl", speed=False),
            "speed": shipped_recall(model, HERE / "recall.jsonl", speed=True),
        },
    }
    print(json.dumps(result, indent=2))
    (args.checkpoint / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
