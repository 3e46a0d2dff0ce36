"""What Hugging Face transformers computes from this checkpoint, as a fixture for other runtimes: witness.json.

Tokens are BoS and the bytes of prompt.txt. The file holds, for two dozen positions, all 256 logits of an fp32 run (the bf16
weights widened) and of a bf16 run, and the greedy continuation of the fp32 run.
"""

import argparse
import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent
POSITIONS, NEW_TOKENS = 24, 64


@torch.no_grad()
def run(folder: pathlib.Path, tokens: torch.Tensor, dtype: torch.dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    assert type(model) is transformers.LlamaForCausalLM
    return model, model(tokens).logits[0].float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=HERE)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "witness.json")
    args = parser.parse_args()
    prompt = (HERE / "prompt.txt").read_bytes()
    tokens = torch.tensor([[0, *prompt]])
    last = tokens.shape[1] - 1
    positions = [round(i * last / (POSITIONS - 1)) for i in range(POSITIONS)]
    model, fp32 = run(args.checkpoint, tokens, torch.float32)
    _, bf16 = run(args.checkpoint, tokens, torch.bfloat16)
    greedy = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False,
                            eos_token_id=None, pad_token_id=0)[0, last + 1 :]
    # bf16 logits have 8 significant bits, so 5 decimal digits name each value exactly enough to round back to it.
    rounded = lambda logits, digits: [[float(f"{v:.{digits}g}") for v in logits[p].tolist()] for p in positions]
    fixture = {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]},
        "prompt_bytes": len(prompt),
        "tokens": tokens.shape[1],
        "positions": positions,
        "greedy_fp32": greedy.tolist(),
        "greedy_text": bytes(greedy.tolist()).decode("latin-1"),
        "logits_fp32": rounded(fp32, 7),
        "logits_bf16": rounded(bf16, 5),
    }
    args.out.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    difference = (fp32 - bf16).abs().max().item()
    print(f"{args.out}: {args.out.stat().st_size} bytes, largest |fp32 - bf16| {difference:.3f}")
    print(repr(fixture["greedy_text"]))


if __name__ == "__main__":
    main()
