"""What every kernel takes: registers, spills, stack and shared memory by architecture, against the table in the repository.

    python resources.py --nvcc nvcc --include include tests/cuda/kernels/*.cu            # compares with resources.txt
    python resources.py ... --update                                                     # rewrites it, on purpose

A spill that the table does not have, or a kernel that it does not know, is a failure. The table holds for one release
of nvcc, which it names; under another one the figures are printed and the exit code is 77 (skipped).
"""

import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_name("resources.txt")
ARCHITECTURES = ("80", "90", "100")
HEAD = "nvcc {release}: kernel, then for sm_{names}: registers/spilled bytes/stack bytes/static shared bytes"


def release_of(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"release ([\d.]+)", text).group(1)


def compile_one(nvcc: str, include: str, source: str, architecture: str) -> dict[str, str]:
    """{mangled kernel: figures} of one source for one architecture."""
    command = [nvcc, "-std=c++20", "-O3", f"-arch=sm_{architecture}", "-Xptxas", "-v", "-cubin", "-o", "/dev/null",
               "-I", include, source]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{source} does not compile for sm_{architecture}:\n{run.stderr}")
    figures, kernel, stack, spilled = {}, None, 0, 0
    for line in run.stderr.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = match.group(1)
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spilled = int(match.group(1)), int(match.group(2)) + int(match.group(3))
        elif kernel and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            figures[kernel] = f"{match.group(1)}/{spilled}/{stack}/{shared.group(1) if shared else 0}"
            kernel = None
    return figures


def readable(names: list[str]) -> dict[str, str]:
    """Demangled, without return type, parameters and the namespaces that all share."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout
    result = {}
    for name, text in zip(names, plain.splitlines()):
        text = re.sub(r"^void ", "", text)
        depth = 0
        for i, c in enumerate(text):  # cut at the parenthesis that opens the parameters
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                text = text[:i]
                break
        result[name] = text.replace("decant::", "").replace("(int)", "").replace("(bool)", "")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--include", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("sources", nargs="+")
    args = parser.parse_args()

    rows: dict[str, dict[str, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tasks = {(s, a): pool.submit(compile_one, args.nvcc, args.include, s, a) for s in args.sources for a in ARCHITECTURES}
        for (_, architecture), task in tasks.items():
            for kernel, figures in task.result().items():
                rows.setdefault(kernel, {})[architecture] = figures
    names = readable(sorted(rows))
    release = release_of(args.nvcc)
    lines = [HEAD.format(release=release, names=", ".join(ARCHITECTURES))]
    lines += sorted(f"{names[k]}  {'  '.join(by.get(a, '-') for a in ARCHITECTURES)}" for k, by in rows.items())
    text = "\n".join(lines) + "\n"

    if args.update:
        TABLE.write_text(text)
        print(f"{TABLE}: {len(rows)} kernels")
        return 0
    known = TABLE.read_text() if TABLE.exists() else ""
    print(text, end="")
    if known == text:
        return 0
    if known.splitlines()[:1] != lines[:1]:
        print(f"SKIPPED: the table is for another nvcc than {release}")
        return 77
    here, there = set(lines), set(known.splitlines())
    for line in sorted(there - here):
        print(f"- {line}")
    for line in sorted(here - there):
        print(f"+ {line}")
    print("Kernels take other resources than tests/cuda/resources.txt says; if that is meant, run with --update.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
