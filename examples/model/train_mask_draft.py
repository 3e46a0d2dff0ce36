"""Train a parallel drafter for the example checkpoint: mask tokens behind the last token, all of them in one forward.

    python train_mask_draft.py                    # writes mask_draft.safetensors, prints the table of README.md
    python train_mask_draft.py --measure-only     # the table without training, for the shipped files

After PARD-2 (arXiv 2605.08632). The last token and K - 1 masks go through the model's lowest layers, which do not change,
so that the masks read the KV rows of the text that are there anyway. Mask i, a trained row in the place of an embedding,
stands i tokens behind the last one and sees the text and the masks before it. An adapter as in train_draft.py, the same for
all, turns the K states into drafts of the next K tokens. Attention among the K states before it was tried and did not help.
Loss: KL(model || draft) + 0.1 cross entropy. Row i counts by the model's probability of the i tokens before the one that
it drafts (CAT), and is trained at max(0.7^i, 0.1) of the places, of those where row i - 1 is (COD).
"""

import argparse
import json
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from data import BOS, load_text
from evaluate import HERE, load_checkpoint
from model import Llama, RMSNorm, rotate
from train import write_atomically
from train_draft import Adapter, cost


def heads(x, count):
    """[windows, rows, count * d] as [windows, rows, count, d]."""
    return x.view(*x.shape[:-1], count, -1)


class Rows:
    """Which rows of which places run: row i of the first counts[i] places, in order of i. The rows of a window stand
    in one list; chain[r] names row r's predecessors in it and itself, `absent` those that are none."""

    def __init__(self, counts):
        depths = torch.arange(len(counts))
        self.depth = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)])
        self.place = torch.cat([torch.arange(n) for n in counts])
        first = torch.tensor([0, *np.cumsum(counts)[:-1].tolist()])
        self.absent = depths[None, :] > self.depth[:, None]
        self.chain = (first[None, :] + self.place[:, None]).masked_fill(self.absent, 0)


class MaskDrafter(nn.Module):
    """What is trained: the masks and the adapter."""

    def __init__(self, model: Llama, layers: int, k: int, ffn: int):
        super().__init__()
        self.layers, self.k = layers, k
        mean = model.model.embed_tokens.weight.detach().mean(0)
        self.masks = nn.Parameter(mean + 0.3 * torch.randn(k - 1, model.shape.hidden))
        self.adapter = Adapter(model, ffn)

    def weights(self) -> dict:
        """As the file names them: the adapter's as in draft.safetensors."""
        return {name.removeprefix("adapter."): p for name, p in self.named_parameters()}

    def forward(self, model: Llama, text: "Text", places, rows: Rows):
        """Draft states [windows, rows, hidden]. places [windows, n]: where the last tokens stand in the text."""
        s, length = model.shape, text.states.shape[1]
        group, scale = s.heads // s.kv_heads, s.head_dim**-0.5
        masks = rows.depth > 0
        at = places[:, rows.place[masks]] + rows.depth[masks]
        # Predecessors among the masks alone, whose list lacks the last tokens' rows.
        absent = rows.absent[masks][:, 1:]
        chain = (rows.chain[masks][:, 1:] - places.shape[1]).masked_fill(absent, 0)
        cos, sin = model.cos[at][:, :, None], model.sin[at][:, :, None]
        later = torch.arange(length) > places[:, rows.place[masks]][:, :, None]  # [windows, masks, length]
        h = self.masks[rows.depth[masks] - 1].expand(len(places), -1, -1)
        for layer, text_k, text_v in zip(model.model.layers, text.keys, text.values, strict=False):
            attention, n = layer.self_attn, layer.input_layernorm(h)
            q = rotate(heads(attention.q_proj(n), s.heads), cos, sin) * scale
            q = q.view(*q.shape[:2], s.kv_heads, group, s.head_dim)
            k = rotate(heads(attention.k_proj(n), s.kv_heads), cos, sin)[:, chain]  # [windows, masks, K - 1, kv heads, d]
            v = heads(attention.v_proj(n), s.kv_heads)[:, chain]
            on_text = torch.einsum("bmhgd,blhd->bmhgl", q, text_k)
            on_masks = torch.einsum("bmhgd,bmchd->bmhgc", q, k)
            on_text = on_text.masked_fill(later[:, :, None, None], -torch.inf)
            on_masks = on_masks.masked_fill(absent[:, None, None], -torch.inf)
            p = torch.cat((on_text, on_masks), -1).softmax(-1)
            y = torch.einsum("bmhgl,blhd->bmhgd", p[..., :length], text_v)
            y = y + torch.einsum("bmhgc,bmchd->bmhgd", p[..., length:], v)
            h = h + attention.o_proj(y.flatten(2))
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        last = torch.gather(text.states, 1, places[:, :, None].expand(-1, -1, s.hidden))
        return self.adapter(torch.cat((last, h), 1))


class Text:
    """What the model makes of texts [windows, length]: the KV rows of its lowest layers, the states above these, and the
    last ones, above the final norm; the log-probability of each next token."""

    @torch.no_grad()
    def __init__(self, model: Llama, tokens, layers: int):
        s, (windows, length) = model.shape, tokens.shape
        self.tokens = tokens
        self.keys = [torch.empty(windows, length, s.kv_heads, s.head_dim) for _ in range(layers)]
        self.values = [torch.empty_like(k) for k in self.keys]
        self.states, self.final = torch.empty(windows, length, s.hidden), torch.empty(windows, length, s.hidden)
        self.gold = torch.empty(windows, length - 1)
        cos, sin = model.cos[:length], model.sin[:length]
        for part in torch.arange(windows).split(8):
            x = model.model.embed_tokens(tokens[part])
            for depth, layer in enumerate(model.model.layers):
                if depth < layers:
                    n = layer.input_layernorm(x)
                    k = heads(layer.self_attn.k_proj(n), s.kv_heads)
                    self.keys[depth][part] = rotate(k, cos[:, None], sin[:, None])
                    self.values[depth][part] = heads(layer.self_attn.v_proj(n), s.kv_heads)
                x = layer(x, cos, sin)
                if depth + 1 == layers:
                    self.states[part] = x
            self.final[part] = model.model.norm(x)
            log_p = F.log_softmax(self.final[part, :-1] @ model.model.embed_tokens.weight.T, -1)
            self.gold[part] = torch.gather(log_p, 2, tokens[part, 1:, None])[:, :, 0]

    def __getitem__(self, which) -> "Text":
        """Of some windows."""
        some = object.__new__(Text)
        some.keys, some.values = [k[which] for k in self.keys], [v[which] for v in self.values]
        some.tokens, some.states, some.final, some.gold = (
            x[which] for x in (self.tokens, self.states, self.final, self.gold))
        return some


@torch.no_grad()
def continued(model: Llama, prompts, count: int, temperature: float, seed: int) -> torch.Tensor:
    """prompts [windows, n] and `count` further tokens by the model, greedy at temperature 0."""
    s, (windows, n) = model.shape, prompts.shape
    draws = torch.Generator().manual_seed(seed)
    keys = [torch.zeros(windows, n + count, s.kv_heads, s.head_dim) for _ in range(s.layers)]
    values = [torch.zeros_like(k) for k in keys]
    out = torch.zeros(windows, n + count, dtype=torch.int64)
    out[:, :n] = prompts
    for at in range(n - 1, n + count - 1):  # `at` is the last token that runs
        first, end = (0 if at == n - 1 else at), at + 1
        x = model.model.embed_tokens(out[:, first:end])
        cos, sin = model.cos[first:end, None], model.sin[first:end, None]
        for layer, k_rows, v_rows in zip(model.model.layers, keys, values, strict=True):
            attention, y = layer.self_attn, layer.input_layernorm(x)
            q = rotate(heads(attention.q_proj(y), s.heads), cos, sin).transpose(1, 2)
            k_rows[:, first:end] = rotate(heads(attention.k_proj(y), s.kv_heads), cos, sin)
            v_rows[:, first:end] = heads(attention.v_proj(y), s.kv_heads)
            k, v = (r[:, :end].transpose(1, 2).repeat_interleave(s.heads // s.kv_heads, 1) for r in (k_rows, v_rows))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=end - first > 1)
            x = x + attention.o_proj(y.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = model.model.norm(x[:, -1]) @ model.model.embed_tokens.weight.T
        if temperature == 0:
            out[:, at + 1] = logits.argmax(-1)
        else:
            p = F.softmax(logits / temperature, -1)
            out[:, at + 1] = torch.multinomial(p, 1, generator=draws)[:, 0]
    return out


def text_windows(text: np.ndarray, count: int, context: int) -> torch.Tensor:
    starts = np.linspace(0, len(text) - context, count).astype(int)
    return torch.from_numpy(np.stack([np.concatenate(([BOS], text[a : a + context - 1])) for a in starts]).astype(np.int64))


def train(model: Llama, drafter: MaskDrafter, text: Text, steps: int, rate: float, windows: int, places: int) -> None:
    embedding = model.model.embed_tokens.weight.detach()
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    draws = torch.Generator().manual_seed(2026)
    k, (count, length) = drafter.k, text.tokens.shape
    rows = Rows([max(1, round(places * max(0.7**i, 0.1))) for i in range(k)])
    began, mean = time.monotonic(), 0.0
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50, (steps - step) / (0.5 * steps))
        batch = text[torch.randint(count, (windows,), generator=draws)]
        last = 16 + torch.stack([torch.randperm(length - 16 - k, generator=draws)[:places] for _ in range(windows)])
        at = last[:, rows.place] + rows.depth  # [windows, rows]: the token whose next one is drafted
        target = torch.gather(batch.final, 1, at[:, :, None].expand(-1, -1, embedding.shape[1])) @ embedding.T
        total = F.pad(batch.gold.cumsum(1), (1, 0))
        cat = (torch.gather(total, 1, at) - torch.gather(total, 1, last[:, rows.place])).exp()
        label = torch.gather(batch.tokens, 1, at + 1)
        draft = F.log_softmax(drafter(model, batch, last, rows) @ embedding.T, -1)
        each = F.kl_div(draft, F.log_softmax(target, -1), log_target=True, reduction="none").sum(-1)
        each = each - 0.1 * torch.gather(draft, 2, label[:, :, None])[:, :, 0]
        loss = (cat * each).sum() / cat.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        mean += loss.item() / 500
        if step % 500 == 499:
            print(f"    step {step + 1}: loss {mean:.4f}, {time.monotonic() - began:.0f} s", flush=True)
            mean = 0.0


@torch.no_grad()
def steps_of(model: Llama, text: Text, first: int, draft, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens per step for chains of 1 to k, on a text by the model from place `first` on: if the likeliest tokens are
    drafted and the text is greedy; if drafts are drawn and the text is. draft(text, places): logits
    [windows, k, places, vocab] after each place and the k - 1 behind it."""
    embedding = model.model.embed_tokens.weight
    greedy, sampled = np.zeros(k), np.zeros(k)
    count, length = text.tokens.shape
    for window in range(count):
        part = text[[window]]
        places = torch.arange(first, length - k)[None]
        q = F.softmax(draft(part, places), -1)
        at = places[0] + torch.arange(k)[:, None]  # [k, places]
        p = F.softmax(part.final[:, at] @ embedding.T, -1)
        token = part.tokens[:, at + 1]
        same = (q.argmax(-1) == token).float()
        # On a text drawn from p the product of min(1, q / p) has the chance that so many are accepted as its mean.
        ratio = (torch.gather(q, 3, token[..., None]) / torch.gather(p, 3, token[..., None]))[..., 0].clamp(max=1)
        greedy += same.cumprod(1).mean((0, 2)).numpy() / count
        sampled += ratio.cumprod(1).mean((0, 2)).numpy() / count
    return 1 + greedy.cumsum(), 1 + sampled.cumsum()


def masked_draft(model: Llama, drafter: MaskDrafter):
    def draft(text, places):
        rows = Rows([places.shape[1]] * drafter.k)
        x = drafter(model, text, places, rows) @ model.model.embed_tokens.weight.T
        return x.view(len(places), drafter.k, places.shape[1], -1)

    return draft


def early_exit_draft(model: Llama, adapter: Adapter, k: int):
    """Of a text whose states are those of the adapter's layer."""

    def draft(text, places):
        x = adapter(text.states) @ model.model.embed_tokens.weight.T
        return torch.stack([x[:, places[0] + i] for i in range(k)], 1)

    return draft


def shipped(model: Llama, path: pathlib.Path) -> MaskDrafter:
    with safe_open(path, "pt") as file:
        layers = int(file.metadata()["layers"])
        weights = {name: file.get_tensor(name).float() for name in file.keys()}
    ffn = weights["gate.weight"].shape[0] if "gate.weight" in weights else 0
    drafter = MaskDrafter(model, layers, len(weights["masks"]) + 1, ffn)
    with torch.no_grad():
        for name, w in drafter.weights().items():
            w.copy_(weights.pop(name))
    assert not weights, f"{path}: {list(weights)} are not a mask drafter's"
    return drafter


def shipped_early_exit(model: Llama, path: pathlib.Path) -> tuple[Adapter, int]:
    with safe_open(path, "pt") as file:
        layers = int(file.metadata()["layers"])
        weights = {name: file.get_tensor(name).float() for name in file.keys()}
    adapter = Adapter(model, weights["gate.weight"].shape[0] if "gate.weight" in weights else 0)
    adapter.load_state_dict(weights)
    return adapter, layers


@torch.no_grad()
def write_witness(model: Llama, drafter: MaskDrafter, path: pathlib.Path) -> None:
    """Logits of a draft below a piece of evaluation.txt, for the runtime's test: of every 16th byte, and the likeliest."""
    text = (HERE / "evaluation.txt").read_bytes()[4000:4064]
    tokens = torch.tensor([[BOS, *text]])
    logits = masked_draft(model, drafter)(Text(model, tokens, drafter.layers), torch.tensor([[len(text)]]))[0, :, 0]
    witness = {"text": text.decode(), "likeliest": logits.argmax(-1).tolist(),
               "logits": [[round(x, 5) for x in row] for row in logits[:, ::16].tolist()]}
    path.write_text(json.dumps(witness) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--tokens", type=int, default=400_000, help="bytes of text to distil on")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--windows", type=int, default=4, help="pieces of text in a step")
    parser.add_argument("--places", type=int, default=64, help="last tokens in each of them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--candidates", default="1:6:256", help="layers:K:ffn of the drafters tried")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=HERE)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/decant-model")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "mask_draft.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(2026)
    model = load_checkpoint(args.checkpoint).requires_grad_(False)
    train_text, held_out = load_text(args.cache)
    began = time.monotonic()
    half = args.context // 2
    prompts = text_windows(held_out, 32, half)
    tests = [continued(model, prompts, half, temperature, 1) for temperature in (0.0, 1.0)]
    chains = (1, 2, 3, 4, 6, 8)
    print("| drafter | greedy: chains of " + ", ".join(map(str, chains)) + " | sampled | weights read for a draft of 4 |")
    print("|---|---|---|---|", flush=True)

    def report(name: str, draft, layers: int, k: int, price) -> float:
        """price(g): weights that a chain of g reads, of those that a token of the model reads."""
        greedy, sampled = (steps_of(model, Text(model, t, layers), half, draft, k)[i] for i, t in enumerate(tests))
        cells = [", ".join(f"{x[g - 1]:.2f}" for g in chains if g <= k) for x in (greedy, sampled)]
        print(f"| {name} | {cells[0]} | {cells[1]} | {price(4):.2f} |", flush=True)
        return max(x / (1 + price(g)) for g, x in enumerate(sampled, start=1))

    def report_masked(drafter: MaskDrafter, name: str) -> float:
        return report(name, masked_draft(model, drafter), drafter.layers, drafter.k,
                      lambda g: cost(model, drafter.layers, drafter))

    adapter, layers = shipped_early_exit(model, HERE / "draft.safetensors")
    report(f"early exit: {layers} layers", early_exit_draft(model, adapter, 8), layers, 8,
           lambda g: g * cost(model, layers, adapter))
    if args.measure_only:
        report_masked(shipped(model, args.out), args.out.name)
        return

    tokens = text_windows(train_text, args.tokens // args.context, args.context)
    best, fastest, text = None, 0.0, None
    for candidate in args.candidates.split(","):
        layers, k, ffn = map(int, candidate.split(":"))
        torch.manual_seed(2026)
        drafter = MaskDrafter(model, layers, k, ffn)
        if text is None or len(text.keys) != layers:
            text = Text(model, tokens, layers)
        train(model, drafter, text, args.steps, args.rate, args.windows, args.places)
        kind = f"MLP {ffn} + linear" if ffn else "linear"
        found = report_masked(drafter, f"{k - 1} masks: {layers} layers + {kind}")
        if found > fastest:
            best, fastest = drafter, found
    weights = {name: w.detach().to(torch.bfloat16).contiguous() for name, w in best.weights().items()}
    metadata = {"format": "pt", "layers": str(best.layers)}
    write_atomically(args.out, lambda path: save_file(weights, path, metadata=metadata))
    args.out.chmod(0o644)
    write_witness(model, shipped(model, args.out), args.out.with_name("mask_witness.json"))
    print(f"{args.out}: {args.out.stat().st_size} bytes, {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
