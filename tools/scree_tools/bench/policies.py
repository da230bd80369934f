"""Cache policies, replayed on traces of disks. For tools/run bench.

The traces are in crates/cache/traces; `make traces` records them again.
"""

import json
import lzma

from scree_tools.bench.report import markdown
from scree_tools.common import process
from scree_tools.common.process import ROOT, check, run

TRACES = ROOT / "crates" / "cache" / "traces"
BLOCK = 4096

# Sizes of a cache, in percent of the distinct requested blocks.
PERCENTS = [1, 2, 5, 10, 20, 50]

# Sizes of the metadata area, which is a part of a whole cache of such a size. From 2 % on it has
# room for all leaves; sizes below 1 % are shown, and do not count.
METADATA_PERCENTS = [0.1, 0.2, 0.5, 1, 2]
METADATA_PART = 0.25
METADATA_COUNTED = ["1", "2"]

ONLINE = ["fifo", "lru", "lirs", "s3-fifo", "arc"]
BEST = "belady"

# Number of blocks that a leaf of the map covers.
LEAF_BLOCKS = 256

# Of each area: HVSTO's choice, Scree's, and the traces.
AREAS = {
    "image": (
        "lirs",
        "lirs",
        {
            "boots-in-turn": "eight clones of an image boot and are worked on, one after the other",
            "boots-together": "the same, begun 5 s after each other",
        },
    ),
    "active": (
        "lru",
        "lirs",
        {
            "database": "PostgreSQL: pgbench, whose rows are requested in a Zipfian distribution",
            "database-backups": "the same, with two backups of all of it",
            "files": "nginx: files by a zipfian distribution, now and then a new one",
            "files-backup": "the same, with a backup of all of it",
        },
    ),
    "metadata": (
        "lru",
        "lru",
        {
            name: f"leaves of the map that `{name}` needs"
            for name in ("boots-together", "database", "database-backups", "files", "files-backup")
        },
    ),
}

# A default passes if it is at most this many percentage points below the best policy.
WITHIN = 1.0


def unpacked(folder, name):
    """A trace as a text file."""
    path = folder / f"{name}.iolog"
    if not path.exists():
        path.write_bytes(lzma.decompress((TRACES / f"{name}.iolog.xz").read_bytes()))
    return path


def of_leaves(log, path):
    """The map pages that a trace needs: a leaf is a block here."""
    lines = []
    for line in log.read_text().splitlines():
        words = line.split()
        if words[1:2] in (["read"], ["write"], ["trim"]):
            offset, length = int(words[2]), int(words[3])
            first = offset // BLOCK // LEAF_BLOCKS
            last = (offset + max(length, 1) - 1) // BLOCK // LEAF_BLOCKS
            line = f"{words[0]} {words[1]} {first * BLOCK} {(last - first + 1) * BLOCK}"
        lines.append(line)
    path.write_text("\n".join(lines + [""]))
    return path


def simulate(log, *arguments):
    return json.loads(run(process.BINARY, "cache", "simulate", "--trace", log, "-o", "json", *arguments))


def footprint(log):
    """The number of distinct blocks that are read."""
    return simulate(log, "--policy", "fifo", "--sizes", "4k")["footprint_bytes"] // BLOCK


def simulated(log, blocks, percents, *arguments):
    """Hit ratios in percent, by size (in percent of this many blocks) and policy."""
    sizes = {max(int(blocks * percent / 100), 1) * BLOCK: percent for percent in percents}
    check(len(sizes) == len(percents), f"{log}: it asks for too few blocks")
    result = simulate(log, "--sizes", ",".join(str(size) for size in sizes), *arguments)
    cells = {str(percent): {} for percent in percents}
    for one in result["results"]:
        cells[str(sizes[one["cache_bytes"]])][one["policy"]] = 100 * one["hit_ratio"]
    return {"asked": result["asked"], "blocks": result["footprint_bytes"] // BLOCK, "cells": cells}


def policies(plan, results, folder, say):
    """All policies on all traces at all sizes."""
    table = results.setdefault("policies", {})
    for area, (_, _, traces) in AREAS.items():
        for name in traces:
            say(f"  {area}: {name}")
            log = unpacked(folder, name)
            blocks = footprint(log)
            if area == "metadata":
                leaves = of_leaves(log, folder / f"{name}.leaves")
                # Written pages enter a cache unchanged.
                result = simulated(leaves, blocks * METADATA_PART, METADATA_PERCENTS, "--writes", "keep")
            else:
                result = simulated(log, blocks, PERCENTS)
            table.setdefault(area, {})[name] = result


def pictures(folder, into):
    """Plots the tables."""
    into.mkdir(parents=True, exist_ok=True)
    for area in ("image", "active"):
        for name in AREAS[area][2]:
            run(
                process.BINARY,
                "cache",
                "simulate",
                "--trace",
                unpacked(folder, name),
                "--plot",
                into / f"cache-{name}.svg",
            )


# ------------------------------------------------------------------- the report


def shortfalls(traces, policy):
    """Trace, size, and percentage points below the best policy, for each cell."""
    return [
        (name, str(percent), max(cell[one] for one in ONLINE) - cell[policy])
        for name, trace in traces.items()
        for percent, cell in trace["cells"].items()
    ]


def counted(area, short):
    return [one for one in short if area != "metadata" or one[1] in METADATA_COUNTED]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def targets(results):
    rows = []
    for area, traces in results.get("policies", {}).items():
        default = AREAS[area][1]
        for name, trace in traces.items():
            short = mean(one for *_, one in counted(area, shortfalls({name: trace}, default)))
            rows.append(
                (f"{area} area, {name}: {default} below the best of each size, mean", WITHIN, short, False, " points")
            )
    return rows


# Differences of at most this many percentage points do not count.
EVEN = 0.5


def verdict(gains):
    wins, loses = max(gains) >= EVEN, min(gains) <= -EVEN
    return {(True, True): "both", (True, False): "wins", (False, True): "loses"}.get((wins, loses), "even")


def cell_text(cell, policy):
    best = max(cell[one] for one in ONLINE)
    text = f"{cell[policy]:.1f}"
    return f"**{text}**" if policy in ONLINE and best - cell[policy] < 0.05 else text


def report(results):
    if "policies" not in results:
        return ""
    table = results["policies"]
    lines = [
        "## Policies",
        "",
        "Hit ratios of 4 KiB blocks in percent, by policy and by size of the cache in percent of all distinct"
        " requested blocks. **The best** online policy is marked; belady knows the future. Requests have passed"
        " the machines' own page caches. A written block leaves the cache, because its location changes."
        " [How the traces were made](../crates/cache/traces/README.md).",
        "",
    ]
    for area, traces in table.items():
        hvsto, default, descriptions = AREAS[area]
        lines += [f"### {area.capitalize()} area", ""]
        if area == "metadata":
            lines += [
                f"The same requests, each for the leaves of the map that it needs ({LEAF_BLOCKS} blocks each), if"
                " no page is kept in memory. Leaves that are written enter the cache. The two-stage LRU is an LRU"
                " where all pages are of the newest version, as here. Sizes are of the whole cache, of which the"
                f" area is {100 * METADATA_PART:.0f} %: at 2 % it has room for all leaves, and so it has at all sizes"
                " above. Sizes below 1 % are not counted below.",
                "",
            ]
        for name, trace in traces.items():
            rows = [
                [f"{percent} %"] + [cell_text(cell, policy) for policy in ONLINE + [BEST]]
                for percent, cell in trace["cells"].items()
            ]
            lines += [
                f"`{name}`: {descriptions[name]}. {trace['asked']:,} blocks are requested,"
                f" {trace['blocks']:,} distinct ones.",
                "",
                markdown(["size"] + ONLINE + [BEST], rows),
                "",
            ]
            if area != "metadata":
                lines += [f"![{name}](pictures/cache-{name}.svg)", ""]
    lines += [
        "### By area",
        "",
        "Percentage points that a policy has less than the best of each size: the mean over all sizes and"
        " traces of an area (of metadata, 1 and 2 %), and the most, with where that is.",
        "",
    ]
    rows = []
    for area, traces in table.items():
        for policy in ONLINE:
            short = counted(area, shortfalls(traces, policy))
            name, percent, worst = max(short, key=lambda one: one[2])
            what = [
                word
                for word, is_so in (("HVSTO's", policy == AREAS[area][0]), ("Scree's", policy == AREAS[area][1]))
                if is_so
            ]
            rows.append(
                [
                    f"{area}: {policy}" + (f" ({' and '.join(what)})" if what else ""),
                    f"{mean(one for *_, one in short):.2f}",
                    f"{worst:.1f}",
                    f"{name}, {percent} %",
                ]
            )
    lines += [markdown(["", "mean", "most", "where"], rows), ""]
    lines += [
        "### HVSTO's choice",
        "",
        "Two-stage LRU for map pages, LIRS for images, LRU for the active area: percentage points more or less"
        f" than the best of the others, by size of the cache. What is less than {EVEN} counts for none.",
        "",
    ]
    by_sizes = {}
    for area, traces in table.items():
        hvsto = AREAS[area][0]
        for name, trace in traces.items():
            rows = by_sizes.setdefault(tuple(trace["cells"]), [])
            gains = [cell[hvsto] - max(cell[one] for one in ONLINE if one != hvsto) for cell in trace["cells"].values()]
            rows.append([f"{area}, {name}: {hvsto}"] + [f"{gain:+.1f}" for gain in gains] + [verdict(gains)])
    for sizes, rows in by_sizes.items():
        lines += [markdown([""] + [f"{size} %" for size in sizes] + [""], rows), ""]
    return "\n".join(lines)
