"""Writes docs/reports: the models compared with measurements. `tools/run report [--only NAME] [--write DIR]`.

leakage.md has HVSTO's Fig. 4, the equations of docs/explanation/leakage.md compared with trials, and both
compared with audits of real volumes. It fails if a trial's mean is further from its equation, or an audit
from its trials, than chance explains: this happens in one of twenty runs (by Bonferroni). The seed is
always the same, but not the placement of Scree.

cost.md has the cost of encryption, predicted and measured (cost.py). An interrupted run continues
from target/reports-cost.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import NormalDist

from scree_tools.bench.report import markdown
from scree_tools.common.process import BINARY, ROOT, TARGET, Failed, check, run
from scree_tools.report import cost as report_cost
from scree_tools.report.audits import FILES, audits

TRIALS = 2000
SEED = 7

# The paper's numbers (§IV-A): compromised units of 100, block size, percent of the bytes.
PUBLISHED = [(1, "4K", 0.0033), (25, "4K", 0.11), (1, "8K", 0.0074), (25, "8K", 0.25)]

# Units, compromised.
SITES = [(10, 1), (10, 3), (20, 5), (50, 10), (100, 1), (100, 25)]
SPREADS = [[], ["--replicas", 2], ["--replicas", 3], ["--erasure", "4+2"]]
SETS = [[], ["--scatter-width", 8]]
# How the blocks of one destage are placed, if there is a plan.
DEALS = [["--destage-width", 16], ["--destage-width", 16, "--granularity", 2]]


def ask(verb, *words):
    """The results for the only number of compromised units."""
    report = json.loads(run(BINARY, "privacy", verb, *words, "-o", "json"))
    return report["results"]


def percent(ratio):
    return f"{100 * ratio:.4g} %"


def figure_four(folder):
    rows = []
    for compromised, block, published in PUBLISHED:
        case = ["--units", 100, "--compromised", compromised, "--block-size", block]
        [estimated] = ask("estimate", *case)
        [tried] = ask("simulate", *case, "--trials", TRIALS, "--seed", SEED)
        ours = 100 * tried["leak_ratio"]
        off = ours / published - 1
        check(abs(off) < 0.05, f"{compromised} units, {block}: {ours} % and not {published} %")
        within = 100 * tried["leak_ratio_within"]
        rows.append(
            [
                f"{compromised}, {block}",
                f"{published} %",
                percent(estimated["leak_ratio"]),
                f"{ours:.4g} ± {within:.1g} %",
                f"{100 * off:+.1f} %",
            ]
        )
    points = ",".join(f"{compromised}:{published}" for compromised, _, published in PUBLISHED)
    run(
        BINARY,
        "privacy",
        "estimate",
        "--units",
        100,
        "--compromised",
        "1..25",
        "--block-size",
        "4K,8K",
        "--plot",
        folder / "leakage.svg",
        "--mark",
        f"HVSTO={points}",
    )
    return markdown(["compromised of 100, blocks", "HVSTO", "equation", "trials", "off"], rows)


def cases():
    for number, (units, compromised) in enumerate(SITES):
        for spread in SPREADS:
            for sets in SETS if spread else [[]]:
                block = ("4K", "16K")[number % 2]
                yield ["--units", units, "--compromised", compromised, *spread, *sets, "--block-size", block]
        for deal in DEALS:
            for spread in SPREADS:
                sets = SETS[1] if spread else []
                yield ["--units", units, "--compromised", compromised, *spread, *sets, *deal]


def agreement():
    all_cases = list(cases())
    # The number of deviations within which all means lie at once in 95 of 100 runs.
    deviations = NormalDist().inv_cdf(1 - 0.05 / len(all_cases) / 2)
    rows, alone = [], 0
    for case in all_cases:
        [estimated] = ask("estimate", *case)
        [tried] = ask("simulate", *case, "--trials", TRIALS, "--seed", SEED)
        within = tried["leak_ratio_within"]
        off = abs(tried["leak_ratio"] - estimated["leak_ratio"])
        alone += off <= within
        check(off <= within * deviations / 1.96, f"{case}: {estimated} {tried}")
        words = " ".join(str(word).removeprefix("--") for word in case)
        rows.append(
            [
                words,
                percent(estimated["leak_ratio"]),
                f"{100 * tried['leak_ratio']:.4g} ± {100 * within:.1g} %",
                f"{off / (within / 1.96):.1f}",
            ]
        )
    head = ["case", "equation", "trials", "deviations off"]
    said = (
        f"{len(rows)} cases; {alone} equations are within the 95 % interval of their trials, and all are within "
        f"{deviations:.2f} deviations, within which all of them are in 95 of 100 runs."
    )
    return f"{said}\n\n{markdown(head, rows)}"


def leakage(folder):
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    return f"""# Leakage of compromised units

Made by `make reports`; the equations and their assumptions are in [leakage models](../explanation/leakage.md). Files are those of
`--distribution documents`, {TRIALS:,} trials a case, seed {SEED}. Blocks are not encrypted unless noted: encrypted
blocks leak nothing.

## HVSTO's Fig. 4

The share of the bytes in completely readable files. The paper's list of files is not published; four numbers
of its text determine the shares of small files, which is all that matters ([how](../explanation/leakage.md#hvstos-files)).

{figure_four(pictures)}

![leakage of files by compromised units, and HVSTO's four numbers](pictures/leakage.svg)

## Equations and trials

{agreement()}

## Equations, trials and audits

{FILES} files with the lengths of documents on ext4, in volumes that Scree has written to this many units.
`scree privacy audit` finds which share of all bytes is in files that are completely readable from the units that are
assumed to be compromised. The model predicts the same for these files and this number of units: by the equation of its plan of
permutations, and by trials with plans as Scree makes them ([how](../explanation/leakage.md#audits)).

{audits()}
"""


def quick():
    """A short run of both that writes nothing, to show that everything works."""
    with tempfile.TemporaryDirectory(prefix="reports-") as folder:
        folder = Path(folder)
        (folder / "pictures").mkdir()
        figure_four(folder / "pictures")
        found = report_cost.report(folder / "cost", folder, quick=True)
    accuracies = report_cost.accuracies(found)
    check(accuracies, "no cost was measured so well that it can be judged")
    least = min(accuracies)
    # Measurements count instructions, so they do not depend on this machine.
    check(least >= report_cost.EACH_MIN, f"the least accuracy of a cost is {percent(least)}")
    print(f"Fig. 4 is hit; costs are right by {percent(least)} at least")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "reports", metavar="DIR")
    parser.add_argument("--only", choices=("leakage", "cost"))
    parser.add_argument("--quick", action="store_true", help="a little of both; nothing is written")
    arguments = parser.parse_args()
    folder = arguments.write
    try:
        if arguments.quick:
            quick()
            return
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        if arguments.only != "cost":
            (folder / "leakage.md").write_text(leakage(folder))
            print(f"wrote {folder / 'leakage.md'}")
        if arguments.only != "leakage":
            work = TARGET / "reports-cost"
            (folder / "cost.md").write_text(report_cost.report(work, folder))
            report_cost.forget(work)
            print(f"wrote {folder / 'cost.md'}")
    except Failed as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
