"""The results of tools/run bench as Markdown."""

import statistics

MIB = 1 << 20

# The key of the numbers that tools/run bench derives from the sequential writes.
DESTAGED = "sequential write 256K QD8, with flush and destage"


def median(values):
    return statistics.median(values)


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def median_ratio(ours, theirs):
    """The median of the repetitions' ratios: a disturbance of one repetition affects both
    numbers."""
    return median([one / other for one, other in zip(ours, theirs)])


def cell(cells, name, what):
    return number(median(cells[name][what])) if name in cells else "–"


def target_row(what, target, value, at_least=True, unit="×"):
    met = value >= target if at_least else value <= target
    sign = "≥" if at_least else "≤"
    spoken = f"{value:.2f}" if value < 100 else number(value)
    return [what, f"{sign} {target}{unit}", f"{spoken}{unit}", "yes" if met else "**no**"]


def targets(results, others):
    """The targets and the measured values; `others` as for `report`."""
    rows = []

    def add(*row):
        rows.append(target_row(*row))

    table = results.get("workloads", {})

    def ratio(workload, to, of="Scree"):
        return median_ratio(table[workload][of]["value"], table[workload][to]["value"])

    if table:
        write, flush = "random write 4K QD32", "random write 4K QD32, flush every 32"
        sequential = "sequential write 256K QD8, with flush"
        add("random read 4K QD32 / qcow2", 1.5, ratio("random read 4K QD32", "qcow2"))
        add("random read 4K QD32 / nbdkit null", 0.7, ratio("random read 4K QD32", "nbdkit null"))
        add("random read 4K QD1 / nbdkit file", 0.9, ratio("random read 4K QD1", "nbdkit file"))
        add("random write 4K QD32 / qcow2", 2.5, ratio(write, "qcow2"))
        add("random write 4K QD32 / nbdkit file", 1.0, ratio(write, "nbdkit file"))
        add("the same with a flush every 32 / qcow2", 2.0, ratio(flush, "qcow2"))
        add("sequential read 256K / qcow2", 1.5, ratio("sequential read 256K QD8", "qcow2"))
        add("sequential write 256K with flush / qcow2", 1.5, ratio(sequential, "qcow2"))
        add(
            "the same until all is destaged / qcow2",
            1.5,
            median_ratio(table[DESTAGED]["Scree"]["value"], table[sequential]["qcow2"]["value"]),
        )
        for name in ("random read 4K QD32", write):
            add(f"CPU per operation, {name}", 15, median(table[name]["Scree"]["cpu_us"]), False, " µs")
    if "snapshots_beside_none" in results:
        pair = results["snapshots_beside_none"]
        count = max(results["snapshots"]["Scree"], key=int)
        add(
            f"read latency after {int(count):,} snapshots / after none",
            1.05,
            median(pair["with"]) / median(pair["without"]),
            False,
        )
        for label, cells in results["snapshot_times_ms"].items():
            add(f"snapshot at {label}", 50, median(cells["snapshot"]), False, " ms")
            add(f"clone at {label}", 50, median(cells["clone"]), False, " ms")
    for name, row in results.get("steady", {}).items():
        if "amplification" in row:
            add(f"bytes to units / bytes from the client, per replica ({name})", 1.3, row["amplification"], False)
    if "memory" in results:
        add("memory, 1 TiB volume, scattered writes", 512, results["memory"]["mib"], False, " MiB")
    if "open" in results:
        add("opening after kill -9, journal full", 2, median([row["seconds"] for row in results["open"]]), False, " s")
    for other in others:
        for row in other.targets(results):
            add(*row)
    return rows


def head(title, results, rows):
    conditions = results["conditions"]
    parts = [f"# {title}", "", "Made by `make bench`; do not edit by hand.", ""]
    if conditions["quick"]:
        parts += ["**A quick run: it exercises every path and its numbers mean nothing.**", ""]
    if conditions["load"] > 0.5 and not conditions["quick"]:
        parts += [
            f"**Other work was running when this began (load {conditions['load']:.1f} on"
            f" {conditions['cores']} cores), so the numbers are disturbed.**",
            "",
        ]
    return parts + ["## Targets", "", markdown(["", "target", "measured", "met"], rows), ""]


def machine(conditions):
    return (
        f"- {conditions['cpu']}, {conditions['cores']} cores; Linux {conditions['kernel']};"
        f" {conditions['file_system']}; {conditions['versions']}"
    )


def report_of_chains(results, others):
    """The report on chains, from modules that have measured them."""
    conditions = results["conditions"]
    rows = [target_row(*row) for other in others for row in other.targets(results)]
    parts = head("Benchmarks of chains", results, rows)
    parts += [section for other in others if (section := other.report(results))]
    parts += [
        "## Conditions",
        "",
        machine(conditions),
        "- Nothing is pinned: the client, links, relays, Scree and QEMU share the two cores.",
        f"- {conditions['repetitions']} repetitions of {conditions['seconds']} s, in turns, the order"
        " reversed each time; medians, and medians of the ratios of each repetition.",
        "- A write is acknowledged by Scree when the journal's file has it (in the page cache), by an"
        " active relay when its own has it, by nbdkit's memory plugin when it is in memory: a flush"
        " makes it durable in the first two.",
        "",
    ]
    return "\n".join(parts)


def report_of_cache(results, others):
    """The report on caches, from modules that have measured them."""
    conditions = results["conditions"]
    rows = [target_row(*row) for other in others for row in other.targets(results)]
    if set(results["measured"]) == {"policies"}:
        # Their numbers do not depend on the speed of the machine.
        results = {**results, "conditions": {**conditions, "quick": False, "load": 0}}
    parts = head("Benchmarks of the cache", results, rows)
    parts += [section for other in others if (section := other.report(results))]
    parts += ["## Conditions", "", machine(conditions)]
    if set(results["measured"]) != {"policies"}:
        parts += [
            f"- {conditions['repetitions']} repetitions (of bonnie++ two at most, of snapshots one); streams and"
            f" working sets of {conditions['seconds']} s; in turns, the order reversed each time; medians, and"
            " medians of the ratios of each repetition.",
            "- Distance means latency only: links do not limit bandwidth. Daemons, links, caches,"
            " journals and local files lie on one machine and one file system, mostly in its page cache.",
            "- A write is acknowledged by Scree when the journal's file on the host has it, by qemu-nbd and"
            " nbdkit when the page cache has it, of a distant file after a round trip; a flush makes it"
            " durable in all. Scree encrypts writes and decrypts reads; the others do not.",
        ]
    parts += [
        "- Policies are replayed on the traces: the numbers do not depend on the machine.",
        "",
    ]
    return "\n".join(parts)


def report(results, workloads, others):
    """The report on `results`; `workloads` are those of the benchmark, and `others` modules that
    add targets and sections for their own measurements."""
    conditions = results["conditions"]
    parts = head("Benchmarks", results, targets(results, others))
    table = results.get("workloads", {})
    if table:
        names = conditions["servers"]
        full = [name for name in names if "behind" not in name]
        rows, cpu = [], []
        for workload, unit, _, _ in workloads:
            cells = table[workload]
            label = f"{workload} ({'MiB/s' if unit == 'mib_s' else 'IOPS'})"
            rows.append([label] + [cell(cells, name, "value") for name in full])
            cpu.append([workload] + [cell(cells, name, "cpu_us") for name in full])
            if workload.startswith("sequential write"):
                rows.append(
                    ["the same until all is destaged (MiB/s)"]
                    + [
                        number(median(table[DESTAGED][name]["value"])) if name.startswith("Scree") else "–"
                        for name in full
                    ]
                )
        parts += ["## Workloads", "", markdown([""] + full, rows), ""]
        parts += [
            "Processor time of the server in µs for each operation, destaging included:",
            "",
            markdown([""] + full, cpu),
            "",
        ]
        chains = [name for name in names if "behind" in name]
        rows = [
            [workload] + [number(median(table[workload][name]["value"])) for name in ["Scree", "qcow2"] + chains]
            for workload in ("random read 4K QD1", "random read 4K QD32")
        ]
        parts += [
            "Random reads (IOPS) when the data lies behind backing files:",
            "",
            markdown([""] + ["Scree", "qcow2"] + chains, rows),
            "",
        ]
    if "snapshots" in results:
        ours, theirs = results["snapshots"]["Scree"], results["snapshots"]["qcow2"]
        rows = [
            [f"{int(count):,}", number(ours[count]), number(theirs[count]) if count in theirs else "–"]
            for count in ours
        ]
        pair = results["snapshots_beside_none"]
        parts += [
            "## Snapshots",
            "",
            "Mean latency in µs of 4K reads, one at a time, of the same 2 MiB, by number of"
            " snapshots (qcow2: backing files):",
            "",
            markdown(["snapshots", "Scree", "qcow2"], rows),
            "",
            f"Measured in turns, a volume with all of them {number(median(pair['with']))} µs,"
            f" one that never had any {number(median(pair['without']))} µs.",
            "",
            "Milliseconds until the command ends (starting it included), with fresh data in the journal:",
            "",
            markdown(
                ["", "snapshot", "snapshot completed", "clone"],
                [
                    [label] + [number(median(cells[key])) for key in ("snapshot", "completed", "clone")]
                    for label, cells in results["snapshot_times_ms"].items()
                ],
            ),
            "",
        ]
    if "steady" in results:
        parts += [
            "## Steady state",
            "",
            "Random 4K overwrites at QD32 of a full disk: the first half of a journal, and after"
            " more than three journals without a pause (IOPS). Bytes written to units per byte"
            " written by the client and replica, map and summaries included:",
            "",
            markdown(
                ["", "first", "after", "written to units"],
                [
                    [
                        name,
                        number(row["first"]),
                        number(row["after"]),
                        f"{row['amplification']:.2f}" if "amplification" in row else "–",
                    ]
                    for name, row in results["steady"].items()
                ],
            ),
            "",
        ]
    if "memory" in results or "open" in results:
        parts += ["## Memory and opening", ""]
    if "memory" in results:
        parts += [
            f"- most memory resident, 1 TiB volume, {results['memory']['written'] // MIB:,} MiB of"
            f" scattered 4K writes: {number(results['memory']['mib'])} MiB"
        ]
    if "scree_memory_mib" in results:
        parts += [
            f"- most memory resident, two volumes, during the workloads: {number(results['scree_memory_mib'])} MiB"
        ]
    if "open" in results:
        rows = results["open"]
        parts += [
            f"- from the start of the process until a volume is read again after kill -9:"
            f" {median([row['seconds'] for row in rows]):.2f} s"
            f" (journal {median([row['full'] for row in rows]):.0%} full,"
            f" median of {len(rows)})"
        ]
    parts += [section for other in others if (section := other.report(results))]
    parts += [
        "",
        "## Conditions",
        "",
        machine(conditions),
        "- Servers pinned to core 0, the client (fio; nbdcopy for"
        " sequential writes; NBD over a unix socket) to core 1. All disks"
        " and units lie on one file system of one disk, so Scree's units share what it can do.",
        f"- Disks of {conditions['size'] // MIB:,} MiB, filled with random data and read once"
        " before each repetition, so the first reads are from memory everywhere; for those"
        ' "from the device" the page cache was emptied before each run. Scree writes segments'
        " past the page cache, so in the mixed workload it reads from the device what the others"
        " find in memory. nbdkit null keeps nothing.",
        f"- {conditions['repetitions']} repetitions of {conditions['seconds']} s after"
        f" {conditions['ramp']} s of warm-up, in turns, the order reversed each time; medians.",
        "- A write is acknowledged by Scree when the journal's file has it, by the others when the"
        " page cache has it: all lose it in a power failure until a flush. A flush makes it"
        " durable in Scree's journal, in the image file of the others; nbdkit null ignores it."
        " Scree seals (AES-256-GCM) all it writes; the others do not encrypt.",
        "- After each write workload the server's backlog is written out before the next turn;"
        " Scree's processor time includes it, that of the kernel's write-back counts for none.",
        "- Bytes to units: the room that the units' files take, before and after, with nothing given back in between.",
        "- All run with their defaults: qemu-nbd and nbdkit with a write-back cache, Scree with a journal of 100 MiB.",
        "",
    ]
    return "\n".join(parts)
