"""Writes docs/reports/cost.md from the results of measure_cost.py. For tools/run report."""

import json
import shutil
from statistics import median

from scree_tools.bench.report import markdown
from scree_tools.common.process import BINARY, run
from scree_tools.report.measure_cost import Rig, measure

# The required accuracy of each case.
EACH_MIN = 0.85


def percent(ratio):
    return f"{100 * ratio:.1f} %"


def seconds(value):
    return f"{value:.2f} s" if abs(value) >= 1 else f"{1000 * value:.0f} ms"


def all_cases(found):
    for place, (_, parts) in found.items():
        for result in parts.values():
            for case in result["cases"]:
                yield place, round(result["machine"]["memory_bytes"] / (1 << 20)), case


def table(found):
    rows = [
        [
            place,
            f"{memory} MiB",
            case["work"],
            case["cipher"],
            str(case["rounds"]),
            seconds(case["predicted_cpu_s"]),
            measured(case),
            accuracy(case),
            seconds(case["plain_cpu_s"]),
            percent(case["predicted_share"]),
            percent(case["measured_share"]),
            seconds(case["predicted_run_s"]),
            seconds(case["measured_run_s"]),
        ]
        for place, memory, case in all_cases(found)
    ]
    head = [
        "place",
        "memory",
        "work",
        "cipher",
        "rounds",
        "predicted",
        "measured",
        "accuracy",
        "CPU without",
        "share predicted",
        "measured",
        "run time predicted",
        "measured",
    ]
    return markdown(head, rows)


def accuracy(case):
    if not case["is_unclear"]:
        return percent(case["accuracy"])
    return "within" if case["is_within"] else "not within"


def accuracies(found):
    """Only the cases that were measured well enough."""
    return [case["accuracy"] for _, _, case in all_cases(found) if not case["is_unclear"]]


def judged(found):
    rows = []
    for name, of in [*((place, {place: found[place]}) for place in found), ("all", found)]:
        these = accuracies(of)
        unclear = [case for _, _, case in all_cases(of) if case["is_unclear"]]
        rows.append(
            [
                name,
                str(len(these)),
                *((percent(median(these)), percent(min(these))) if these else ("-", "-")),
                str(sum(one < EACH_MIN for one in these)),
                str(len(unclear)),
                str(sum(case["is_within"] for case in unclear)),
            ]
        )
    head = [
        "place",
        "cases",
        "median accuracy",
        "lowest",
        f"below {percent(EACH_MIN)}",
        "unclear cases",
        "predicted within chance",
    ]
    return markdown(head, rows)


def measured(case):
    within = case.get("measured_within_s")
    return seconds(case["measured_cpu_s"]) + (f" ± {seconds(within)}" if within is not None else "")


def calibrated(found):
    rows = []
    for place, (calibration, _) in found.items():
        [one] = [one for one in calibration["places"] if one["place"] == place]
        for layer in one["layers"]:
            cpu = layer["layer"]["cpu"]
            cells = [
                [f"{bytes_ / 1024:.0f}K: {1e6 * taken:.0f} µs" for bytes_, taken in cpu[way]]
                for way in ("write", "read")
            ]
            rows.append([place, layer["cipher"], *(", ".join(way) for way in cells)])
    return markdown(["place", "cipher", "E: a write", "D: a read"], rows)


def factor(found):
    calibration, _ = found["guest-block"]
    [one] = [one for one in calibration["places"] if one["place"] == "guest-block"]
    target = one["target"]
    rows = [
        [
            f"{100 * reads['data_ratio']:.0f} %",
            f"{reads['speedup']:.1f}",
            percent(reads["missed"]),
            f"{writes['speedup']:.1f}",
        ]
        for reads, writes in zip(target["reads"], target["writes"])
    ]
    return markdown(
        ["data, of the memory", "F of warm reads", "of which reach the disk", "F of writes, until they return"],
        rows,
    )


def pictures(rig, found, folder):
    _, parts = found["guest-block"]
    names = []
    for name, result in parts.items():
        path = rig.folder / f"{name}.validated"
        path.write_text(json.dumps(result))
        names.append((name, path))
    writes = [path for name, path in names if name.startswith("writes")]
    words = [path for name, path in names if name == "words"]
    half = [path for name, path in names if name == "writes-512"]
    drawn = [
        ("cost-memory", writes, "load"),
        ("cost-load", half, "load"),
        ("cost-share", half, "share"),
        ("cost-words", words, "time"),
        ("cost-words-overhead", words, "overhead"),
    ]
    for picture, files, figure in drawn:
        run(BINARY, "cost", "draw", *files, "--figure", figure, "--plot", folder / f"{picture}.svg")


def machine(found):
    calibration, _ = found["agent"]
    one = calibration["machine"]
    return f"{one['cpus']} × {one['processor']}, Linux {one['kernel']}"


def words_table(found):
    _, parts = found["guest-block"]
    rows = [
        [
            f"{case['bytes'] >> 20} MiB",
            seconds(case["plain_run_s"]),
            seconds(case["measured_run_s"]),
            percent(case["measured_cpu_s"] / case["plain_cpu_s"]),
            percent(case["predicted_cpu_s"] / case["plain_cpu_s"]),
        ]
        for case in parts["words"]["cases"]
    ]
    return markdown(["file", "takes without", "with", "CPU in addition, measured", "predicted"], rows)


TEXT = """# The cost of encryption

Made by `make reports`; the equations are in [cost model](../explanation/cost-model.md). The compared value is additional CPU time:
that of a run with encryption minus that of the same run without, by the kernel's accounts, and the prediction of
`scree cost predict` from a calibration with other work. Accuracy is 1 minus the relative error of the prediction.

**Conditions.** Virtual machines of QEMU with one processor that takes exactly 4 ns for each instruction (`-icount`),
Debian's kernel, and a disk of 60 MB/s: CPU time depends on the programs, not on the load of the host. An AES instruction
takes as long there as any other. Scree, gocryptfs and dm-crypt are those that run anywhere. `guest-block`
is dm-crypt below ext4 (sectors of 4 KiB), and all of the machine's CPU time; `guest-stackable` is gocryptfs above ext4,
and the time of the program and of gocryptfs. `filter` and `agent` are volumes of a `scree up` over NBD, with two units in folders
in memory, and its CPU time, on {host}: there an AES instruction takes what it takes. Each
work is done as often as the table below shows, in turns with encryption and without; the median counts. All works end when
everything is durable. With three rounds or more, "±" is the 95 % confidence of the additional time. If it is more than
15 % of that time, which is the permitted error of a prediction, the accuracy is unclear: such a case does not count, and
the table shows whether the prediction is within chance. Most cases of `filter` and `agent` are unclear: encryption adds
milliseconds to a volume, and everything else takes hundreds, which vary by more.

The time and CPU time of a word count besides reading and writing are taken from the run without encryption, not predicted.

{judged}

## Calibration

Additional CPU time with requests of 4, 32 and 128 KiB and 1 MiB. It is negative for `agent`: blocks of unencrypted
volumes are shuffled, so that few neighbors are together on a unit, and are read one by one; those of encrypted volumes
are in order, and are read in long runs.

{calibrated}

Memory, as equation 4 has it:

{factor}

## The paper's cases

**Fig. 4: memory.** Files of 10 to 1000 MB are written, with 256 to 1024 MB of memory. The authors saw a load near 10 % with
files of up to 68 % of the memory, and less with larger ones. Here load does not depend on memory, since each
run ends when everything is durable: data in memory has to be encrypted and written in any case.

![load by memory](pictures/cost-memory.svg)

**Fig. 5 and 6: load.** With 512 MB. The authors saw it rise up to 260 MB and then stay, and fitted a logarithm.

![load with 512 MB](pictures/cost-load.svg)
![share of encryption with 512 MB](pictures/cost-share.svg)

**Fig. 7: a word count.** A map-reduce of Scree's own (`words` of [cost model](../explanation/cost-model.md)) in place of Hadoop, with
1024 MB of memory. The authors saw at most 10 % on average.

{words}

![time](pictures/cost-words.svg)
![CPU in addition](pictures/cost-words-overhead.svg)

The authors report an accuracy of 90 to 92 %.

## All cases

{table}
"""


def report(work_folder, folder, quick=False):
    """Measures everything below this folder, and returns the report; plots go to the other one."""
    rig = Rig(work_folder, quick)
    found = measure(rig)
    if quick:
        return found
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    pictures(rig, found, folder / "pictures")
    text = TEXT.format(
        host=machine(found),
        judged=judged(found),
        calibrated=calibrated(found),
        factor=factor(found),
        words=words_table(found),
        table=table(found),
    )
    return text


def forget(work_folder):
    shutil.rmtree(work_folder, ignore_errors=True)
