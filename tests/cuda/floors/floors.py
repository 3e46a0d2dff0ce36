"""Bytes of global memory that each primitive moves against the fewest it could, and sectors against bytes, as a table.

    python floors.py RUN_SH FLOORS_PROGRAM

Bytes may be at most 1.05 times the floor, and 32-byte sectors at least 0.9 full, for every primitive.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

MOST_BYTES, LEAST_FULL = 1.05, 0.9


def main() -> int:
    run, program = sys.argv[1:3]
    names = subprocess.run([run, program], check=True, capture_output=True, text=True).stdout.splitlines()
    failed = False
    print(f"{'primitive':36} {'floor MB':>9} {'moved MB':>9} {'ratio':>6} {'sectors full':>13}")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            counters = pathlib.Path(folder) / "counters.jsonl"
            counters.touch()
            text = subprocess.run([run, "--counters", counters, program, name], check=True, capture_output=True,
                                  text=True).stdout
            rows = [json.loads(line) for line in counters.read_text().splitlines()]
        floor = json.loads(text)["floor"]
        moved = sum(r["global_read_bytes"] + r["global_write_bytes"] for r in rows)
        sectors = sum(r["global_read_sectors"] + r["global_write_sectors"] for r in rows)
        ratio, full = moved / floor, moved / (32 * sectors)
        good = ratio <= MOST_BYTES and full >= LEAST_FULL
        failed |= not good
        print(f"{name:36} {floor / 1e6:9.3f} {moved / 1e6:9.3f} {ratio:6.3f} {full:13.3f}{'' if good else '  <- too many'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
