#!/usr/bin/env python3
"""Compiles and runs what the documentation shows.

    snippets.py ROOT WORK_FOLDER COMPILER FLAG...

Every ```cpp block of README.md and docs/*.md is a complete program: it is compiled and run, and must exit with 0. A block
that is not a program is marked ```cpp fragment. A complete program that is also a file of examples/ must equal it, where a
line above the block names it as <!-- examples/NAME.cpp -->. Commands in ```sh blocks that name a path of the repository
(./examples/run.sh) must name one that exists and, if run directly, is executable.
"""

import os
import re
import subprocess
import sys
from pathlib import Path


def blocks(text):
    """Yields (line number, info string, body, line above) of each fenced block."""
    info, start, body, above = None, 0, [], ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if info is None:
                info, start, body = line[3:].strip(), number, []
            else:
                yield start, info, "\n".join(body) + "\n", above
                info, above = None, ""
        elif info is None:
            above = line.strip() or above
        else:
            body.append(line)


def check_program(where, body, above, root, work, command):
    named = re.fullmatch(r"<!-- (examples/\S+\.cpp) -->", above)
    if named and (root / named[1]).read_text() != body:
        return [f"{where}: differs from {named[1]}"]
    if "int main" not in body:
        return [f"{where}: no complete program; write ```cpp fragment if that is meant"]
    source = work / (re.sub(r"\W", "_", where) + ".cpp")
    source.write_text(body)
    program = source.with_suffix("")
    built = subprocess.run([*command, str(source), "-o", str(program)], capture_output=True, text=True)
    if built.returncode != 0:
        return [f"{where}: does not compile\n{built.stderr}"]
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=120, cwd=work)
    if ran.returncode != 0:
        return [f"{where}: exits with {ran.returncode}\n{ran.stdout}{ran.stderr}"]
    print(f"{where}: ran, printed {len(ran.stdout.splitlines())} lines")
    return []


def check_commands(where, body, root):
    errors = []
    for line in body.splitlines():
        for path in re.findall(r"(?:^|\s)(\./[\w./-]+|(?:examples|tests|bench|cmake)/[\w./-]+)", line):
            target = root / path
            if path.startswith("./build") or "/build/" in path:
                continue
            if not target.exists():
                errors.append(f"{where}: {path} does not exist")
            elif path.startswith("./") and target.is_file() and not os.access(target, os.X_OK):
                errors.append(f"{where}: {path} is not executable")
    return errors


def main():
    root, work, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    work.mkdir(parents=True, exist_ok=True)
    pages = [p for p in [root / "README.md", *sorted(root.glob("docs/**/*.md"))] if p.exists()]
    if not pages:
        print("SKIPPED: no README.md")
        return 77
    errors, programs = [], 0
    for page in pages:
        for number, info, body, above in blocks(page.read_text()):
            where = f"{page.relative_to(root)}:{number}"
            if info == "cpp":
                programs += 1
                errors += check_program(where, body, above, root, work, command)
            elif info in ("sh", "bash", "console"):
                errors += check_commands(where, body, root)
    print(f"{programs} programs, {len(errors)} errors")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
