#!/usr/bin/env python3
"""Turns benchmark rows into one JSON array and, on request, a page with tables and plots.

    report.py [--json FILE] [--report FILE.md] ROWS.jsonl...

A page that is there already keeps its sections of families that the rows leave out. The plots go to the folder plots/
beside it. Standard library only.
"""

import argparse
import datetime
import json
import math
import platform
import re
import subprocess
from collections import defaultdict
from html import escape
from pathlib import Path

MOST_LINES = 20  # that a plot has room for
MOST_PEERS = 6  # that a table has columns for
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b"]


def figure(value):
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def shape_of(row):
    return dict(part.split("=", 1) for part in row["shape"].split(",") if "=" in part)


def peer_value(row, ratio):
    """A peer's own figure: a row holds ours divided by the peer's, above 1 where ours is better."""
    return row["value"] * ratio if row["unit"] in ("us", "ms", "s") else row["value"] / ratio


def values_of(rows, key):
    """A shape key's values, in the order of rows; None where a row has no such key."""
    return list(dict.fromkeys(shape_of(row).get(key) for row in rows))


def keys_of(rows):
    return list(dict.fromkeys(key for row in rows for key in shape_of(row)))


def is_number(text):
    return text is not None and re.fullmatch(r"[\d.]+", text) is not None


def size_key(rows):
    """The shape key that the plot's x axis shows: the numeric one that makes the fewest lines, of equals the first."""
    keys = [key for key in keys_of(rows) if len(values_of(rows, key)) > 1 and all(map(is_number, values_of(rows, key)))]
    return min(keys, key=lambda key: len(series_of(rows, key, False)), default=None)


def series_of(rows, key, peers):
    """Name of each line -> its points; the limit and the peers are lines of their own."""
    several = lambda field: len({row[field] for row in rows}) > 1
    varied = [k for k in keys_of(rows) if k != key and len(values_of(rows, k)) > 1]
    lines = defaultdict(list)
    for row in rows:
        shape = shape_of(row)
        rest = ",".join(f"{k}={shape[k]}" for k in varied if k in shape)
        name = " ".join([row["policy"]] + [row[f] for f in ("context", "isa") if several(f)] + ([rest] if rest else []))
        other = "".join(f" {text}" for text in (row["context"] if several("context") else "", rest) if text)
        x = float(shape[key])
        lines[name, False].append((x, row["value"]))
        if row["ratio_to_limit"]:
            lines[row["limit"] + other, True].append((x, peer_value(row, row["ratio_to_limit"])))
        for peer, ratio in row["peers"].items() if peers else ():
            if ratio:
                lines[peer + other, True].append((x, peer_value(row, ratio)))
    return {line: sorted(dict(points).items()) for line, points in lines.items()}


def panels(rows, label=""):
    """(label, x axis, lines) of each plot: one, or, where it would show too much, one a value of a shape key that is text.
    Where that is too much still, without peers: the table has them."""
    key = size_key(rows)
    lines = series_of(rows, key, True) if key else {}
    if not key or len(lines) > MOST_LINES:
        for name in keys_of(rows):
            values = values_of(rows, name)
            if len(values) > 1 and not all(v is None or is_number(v) for v in values):
                parts = ([row for row in rows if shape_of(row).get(name) == v] for v in values)
                return [panel for v, part in zip(values, parts) for panel in panels(part, f"{label} {name}={v}")]
        lines = series_of(rows, key, False) if key else {}
    lines = {name: points for name, points in lines.items() if len(points) > 1}  # the others are in the table
    return [(label, key, lines)] if lines else []


def alike(rows):
    """Rows of policies whose shapes have the same keys stand in one table."""
    keys = {policy: [set(shape_of(row)) for row in rows if row["policy"] == policy] for policy in {r["policy"] for r in rows}}
    groups = defaultdict(list)
    for row in rows:
        groups[frozenset(set.intersection(*keys[row["policy"]]))].append(row)
    return list(groups.values())


def table(rows):
    """What is the same in all rows stands above the table; the keys of the shape that vary, and peers, are columns."""
    columns = {}  # header -> cell of a row
    same = []
    for field in ("policy", "context", "isa"):
        if len({row[field] for row in rows}) > 1:
            columns[field] = lambda row, field=field: row[field]
        else:
            same.append(rows[0][field])
    for key in keys_of(rows):
        if len(values_of(rows, key)) > 1:
            columns[key] = lambda row, key=key: shape_of(row).get(key, "–")
        else:
            same.append(f"{key}={shape_of(rows[0])[key]}")
    texts = len(columns)
    columns[rows[0]["unit"] if rows[0]["unit"] != "1" else rows[0]["metric"]] = lambda row: figure(row["value"])
    limits = {row["limit"] for row in rows if row["limit"]}
    if len(limits) == 1:
        columns["of " + limits.pop()] = lambda row: f"{row['ratio_to_limit']:.0%}" if row["limit"] else "–"
    elif limits:
        columns["limit"] = lambda row: f"{row['ratio_to_limit']:.0%} of {row['limit']}" if row["limit"] else "–"
    for name in dict.fromkeys(name for row in rows for name in row.get("derived", {})):
        columns[name] = lambda row, name=name: figure(row.get("derived", {}).get(name))
    if any(row["error"] is not None for row in rows):
        columns["error"] = lambda row: "–" if row["error"] is None else f"{row['error']:.2g}"
    peers = list(dict.fromkeys(peer for row in rows for peer in row["peers"]))
    if len(peers) <= MOST_PEERS:
        for peer in peers:
            columns["/ " + peer] = lambda row, peer=peer: f"{figure(row['peers'][peer])}x" if peer in row["peers"] else "–"
    else:
        columns["peers"] = lambda row: ", ".join(f"{peer} {figure(ratio)}x" for peer, ratio in row["peers"].items()) or "–"
    aligned = ["---" if i < texts or name == "peers" else "--:" for i, name in enumerate(columns)]
    lines = [" | ".join(columns), "|".join(aligned)]
    lines += [" | ".join(cell(row) for cell in columns.values()) for row in rows]
    return [", ".join(same), "", f"| {lines[0]} |", f"|{lines[1]}|"] + [f"| {line} |" for line in lines[2:]]


def plot(title, unit, key, lines):
    """A line plot as SVG, logarithmic but for an x axis that begins at 0."""
    width, height, left, right, top, bottom = 850, 380, 70, 310, 36, 46
    points = [p for line in lines.values() for p in line if p[1] and p[1] > 0]
    xs, ys = zip(*points)
    of_x = math.log if min(xs) > 0 else float
    x0, x1 = of_x(min(xs)), of_x(max(xs))
    y0, y1 = math.log10(min(ys)) - 0.1, math.log10(max(ys)) + 0.1
    px = lambda x: left + (of_x(x) - x0) / ((x1 - x0) or 1) * (width - left - right)
    py = lambda y: height - bottom - (math.log10(y) - y0) / (y1 - y0) * (height - top - bottom)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for exponent in range(math.floor(y0), math.ceil(y1) + 1):
        for mantissa in (1, 2, 5):
            y = mantissa * 10.0**exponent
            if y0 <= math.log10(y) <= y1:
                svg.append(f'<path d="M{left} {py(y):.1f}H{width - right}" stroke="#dddddd"/>')
                svg.append(f'<text x="{left - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in sorted(set(xs)):
        svg.append(f'<text x="{px(x):.1f}" y="{height - bottom + 18}" text-anchor="middle">{x:,.0f}</text>')
    svg.append(f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">{escape(key)}</text>')
    svg.append(f'<text x="14" y="{height / 2}" text-anchor="middle" transform="rotate(-90 14 {height / 2})">{escape(unit)}</text>')
    order = sorted(lines, key=lambda line: -lines[line][-1][1])
    for place, line in enumerate(order):
        name, is_peer = line
        colour = COLOURS[place % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if is_peer else ""
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in lines[line] if y and y > 0)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        svg += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{colour}"/>' for x, y in lines[line] if y and y > 0]
        legend = top + 12 + 17 * place
        svg.append(f'<path d="M{width - right + 14} {legend}h22" stroke="{colour}" stroke-width="2"{dash}/>')
        svg.append(f'<text x="{width - right + 42}" y="{legend + 4}">{escape(name[:40])}</text>')
    return "\n".join(svg + ["</svg>", ""])


def environment():
    def first(pattern, path):
        try:
            match = re.search(pattern, Path(path).read_text(), re.M)
        except OSError:
            match = None
        return match[1].strip() if match else "unknown"

    def output(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            return "unknown"

    memory = first(r"^MemTotal:\s+(\d+)", "/proc/meminfo")
    return "; ".join([
        datetime.date.today().isoformat(),
        first(r"^model name\s*:\s*(.*)$", "/proc/cpuinfo"),
        f"{output('nproc')} cores",
        f"{int(memory) / 2**20:.0f} GiB" if memory.isdigit() else memory,
        first(r'^PRETTY_NAME="(.*)"', "/etc/os-release") + ", " + platform.release(),
        output("c++", "--version") + " `-O2`, peers with `-O3 -march=native`",
    ])


def section(family, rows, folder):
    """The part of the page about one family."""
    out = [f"## {family}", "", environment(), ""]
    plots = folder / "plots"
    for old in plots.glob(f"{family}_*.svg"):
        old.unlink()
    groups = defaultdict(list)
    for row in rows:
        groups[row["primitive"], row["metric"], row["unit"]].append(row)
    for (primitive, metric, unit), group in groups.items():
        out += [f"### {primitive}, {metric} in {unit}", ""]
        parts = alike(group)
        for part in parts:
            policies = "" if len(parts) == 1 else " " + part[0]["policy"]
            for label, key, lines in panels(part):
                if not any(y and y > 0 for line in lines.values() for _, y in line):  # a logarithm has no place for 0
                    continue
                plots.mkdir(parents=True, exist_ok=True)
                label = policies + label
                name = re.sub(r"\W+", "_", f"{family}_{primitive}_{metric}{label}") + ".svg"
                (plots / name).write_text(plot(f"{family}: {primitive}{label}", unit, key, lines))
                out += [f"![{family} {primitive}{label}](plots/{name})", ""]
            out += table(part) + [""]
    return "\n".join(out)


def page(rows, path):
    """The page with these rows; of families without rows, what `path` says of them."""
    families = defaultdict(list)
    for row in rows:
        families[row["family"]].append(row)
    old = re.split(r"^(?=## )", path.read_text(), flags=re.M)[1:] if path.exists() else []
    sections = {re.match(r"## (.*)", text)[1]: text.rstrip() + "\n" for text in old}
    sections.update((family, section(family, part, path.parent)) for family, part in families.items())
    head = ["# Benchmark results", "",
            "Written by `bench/run.sh`. Every row is the median of interleaved turns of decant, the machine's limit and the peers",
            "in one process. *Of* a limit: the share of that bound reached. */ peer*: decant divided by the peer, above 1 is better.",
            "*Error* is against the double-precision oracle, of lossless codecs the share of wrong elements.",
            "Rows of `control`, `two_servers`, `rollout` and `update` are simulated, in seconds of the simulation, not measured:",
            "*low* and *high* are the ends of the 95 % bootstrap interval of the ratio in the first */* column.", ""]
    return "\n".join(head + [sections[family] for family in sorted(sections)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("rows", nargs="+", type=Path)
    arguments = parser.parse_args()
    rows = [json.loads(line) for path in arguments.rows for line in path.read_text().splitlines() if line]
    if arguments.json:
        arguments.json.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")
        print(f"{len(rows)} rows in {arguments.json}")
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(page(rows, arguments.report))
        print(f"report in {arguments.report}")


if __name__ == "__main__":
    main()
