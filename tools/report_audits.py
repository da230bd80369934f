"""The audits of docs/reports/leakage.md: files on real volumes, over real units."""

import random
import tempfile
from pathlib import Path

from bench_report import markdown
from lib import Scree, check, run

SEED = 11
FILES = 400
FILE_BYTES_MAX = 300_000
IMAGE_MIB = 64

# Units, with how many others each shares segments, and how many are captured.
SITES = [(6, 8, (1, 2, 3)), (10, 8, (1, 2, 4)), (20, 8, (1, 4, 8)), (20, 4, (2, 5, 10))]
SPREADS = [["--replicas", "1"], ["--replicas", "2"], ["--replicas", "3"], ["--erasure", "4+2"]]
# Of each case so many sets of units are taken for captured.
SETS = 6


def make_image(folder):
    """An ext4 file system with files as long as documents are."""
    chance = random.Random(SEED)
    tree = folder / "tree"
    for number in range(FILES):
        path = tree / f"{number % 20}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        length = min(int(chance.lognormvariate(8.8, 1.5)) + 1, FILE_BYTES_MAX)
        path.write_bytes(chance.randbytes(length))
    image = folder / "image"
    run("/usr/sbin/mkfs.ext4", "-q", "-b", "4096", "-d", tree, image, f"{IMAGE_MIB}M")
    return image


def written(scree, name, image, options):
    scree.cli("volume", "create", name, "--size", f"{IMAGE_MIB}M", *options)
    uri = scree.export(name)
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, uri)
    scree.cli("volume", "unexport", name)


def audited(scree, name, units):
    named = ",".join(f"u{unit}" for unit in units)
    return scree.cli("privacy", "audit", name, "--units", named)


def percent(ratio):
    return f"{100 * ratio:.3g} %"


def of_case(scree, name, units, captured, chance):
    """What audits of some sets of units say, the first of which stands for itself."""
    sets = [sorted(chance.sample(range(1, units + 1), captured)) for _ in range(SETS)]
    told = [audited(scree, name, one) for one in sets]
    found = [one["found"]["files"]["whole_bytes"] / one["found"]["files"]["content"]["all"]
             for one in told]
    predicted = [one["predicted"] for one in told]
    # Two-sided, by the trials alone.
    likely = 2 * min(1 - predicted[0]["less_ratio"], 1 - predicted[0]["more_ratio"])
    return found, predicted, min(likely, 1)


def of_site(image, site, number, cases):
    units, width, captured_counts = site
    chance = random.Random(SEED * 1000 + number)
    with tempfile.TemporaryDirectory(prefix="scree-", dir="/tmp") as folder:
        scree = Scree(Path(folder) / "d", units=units, arguments=["--scatter-width", width])
        scree.start()
        try:
            kinds = [([*spread, "--seal", "none"], captured_counts) for spread in SPREADS]
            kinds.append((SPREADS[1], captured_counts[-1:]))
            for kind, (options, counts) in enumerate(kinds):
                name = f"disk-{kind}"
                written(scree, name, image, options)
                for captured in counts:
                    words = " ".join(options).replace("--", "")
                    case = f"{captured} of {units}, scatter-width {width}, {words}"
                    cases.append((case, *of_case(scree, name, units, captured, chance)))
                scree.cli("volume", "delete", name)
        finally:
            scree.stop()


def audits():
    """A table of all cases, and what is said of it."""
    cases = []
    with tempfile.TemporaryDirectory(prefix="scree-", dir="/tmp") as folder:
        image = make_image(Path(folder))
        for number, site in enumerate(SITES):
            of_site(image, site, number, cases)
    least = 0.05 / len(cases)
    rows, alone, among, all_sets = [], 0, 0, 0
    for case, found, predicted, likely in cases:
        first = predicted[0]
        check(likely >= least, f"{case}: found {found[0]}, and {first}: {likely}")
        agree = sum(one["agrees"] for one in predicted)
        alone, among, all_sets = alone + first["agrees"], among + agree, all_sets + len(found)
        rows.append([case, percent(first["leak_ratio"]),
                     f"{percent(first['leak_ratio_min'])} to {percent(first['leak_ratio_max'])}",
                     percent(found[0]), f"{likely:.2g}",
                     f"{percent(sum(found) / len(found))}, {agree} of {len(found)}"])
    head = ["case", "equation", "95 of 100 trials", "audit", "p", f"{SETS} audits: mean, agree"]
    said = (f"{len(cases)} cases. {alone} of their audits lie between what 95 of 100 trials have, and none is "
            f"further out than chance explains for that many (p is no less than {least:.1g}, by Bonferroni). "
            f"Of all {all_sets} audits, of which those of one volume have its sets in common, {among} do.")
    return f"{said}\n\n{markdown(head, rows)}"
