"""The audits of docs/reports/leakage.md: files on real volumes, over real units."""

import random
import tempfile
from pathlib import Path

from scree_tools.bench.report import markdown
from scree_tools.common.process import check, run
from scree_tools.common.scree import Scree

SEED = 11
FILES = 400
FILE_BYTES_MAX = 300_000
IMAGE_MIB = 64

# Units, their scatter width, and the number of compromised ones.
SITES = [(6, 8, (1, 2, 3)), (10, 8, (1, 2, 4)), (20, 8, (1, 4, 8)), (20, 4, (2, 5, 10))]
SPREADS = [["--replicas", "1"], ["--replicas", "2"], ["--replicas", "3"], ["--erasure", "4+2"]]
# Number of sets of compromised units of each case. With many more, there would be too few trials to
# say whether an audit is further out than chance explains.
SETS = 5


def make_image(folder):
    """An ext4 file system with files of the lengths of documents."""
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


def odds(predicted):
    """The probability that an audit is at least as far out as this one in either direction: by
    the trials, and itself as one more."""
    trials = predicted["trials"]
    as_far = min(1 - predicted["less_ratio"], 1 - predicted["more_ratio"])
    return min(2 * (round(as_far * trials) + 1) / (trials + 1), 1)


def of_case(scree, name, units, compromised, chance):
    """The audits of some sets of units."""
    sets = [sorted(chance.sample(range(1, units + 1), compromised)) for _ in range(SETS)]
    return [audited(scree, name, one) for one in sets]


def of_site(image, site, number, plain, sealed):
    units, width, compromised_counts = site
    chance = random.Random(SEED * 1000 + number)
    with tempfile.TemporaryDirectory(prefix="scree-", dir="/tmp") as folder:
        scree = Scree(Path(folder) / "d", units=units, arguments=["--scatter-width", width])
        scree.start()
        try:
            kinds = [([*spread, "--encryption", "none"], compromised_counts, plain) for spread in SPREADS]
            kinds.append((SPREADS[1], compromised_counts[-1:], sealed))
            for kind, (options, counts, cases) in enumerate(kinds):
                name = f"disk-{kind}"
                written(scree, name, image, options)
                for compromised in counts:
                    words = " ".join(options[:2]).replace("--", "")
                    case = f"{compromised} of {units}, scatter-width {width}, {words}"
                    cases.append((case, of_case(scree, name, units, compromised, chance)))
                scree.cli("volume", "delete", name)
        finally:
            scree.stop()


def of_plain(cases):
    """Each audit compared with the trials, and a summary."""
    count = sum(len(reports) for _, reports in cases)
    least = 0.05 / count
    rows, within, in_cases = [], 0, 0
    for case, reports in cases:
        files = [one["result"]["files"] for one in reports]
        found = [one["readable_bytes"] / one["content"]["total"] for one in files]
        predicted = [one["predicted"] for one in reports]
        likely = [odds(one) for one in predicted]
        for ratio, one, p in zip(found, predicted, likely):
            check(2 / (one["trials"] + 1) <= least, f"{one['trials']} trials cannot tell {count} audits from chance")
            check(p >= least, f"{case}: found {ratio}, and {one}: {p}")
        agree = sum(one["agrees"] for one in predicted)
        within, in_cases = within + agree, in_cases + (agree == len(reports))
        first = predicted[0]
        rows.append(
            [
                case,
                percent(first["equation_ratio"]),
                f"{percent(first['leak_ratio_min'])} to {percent(first['leak_ratio_max'])}",
                f"{percent(min(found))} to {percent(max(found))}",
                percent(sum(found) / len(found)),
                f"{agree} of {len(reports)}",
                f"{min(likely):.2g}",
            ]
        )
    head = ["case", "equation", "95 of 100 trials", f"{SETS} audits", "their mean", "agree", "least p"]
    said = (
        f"{len(cases)} cases, {SETS} audits each. {within} of the {count} audits ({100 * within / count:.0f} of "
        f"100) are within the range of 95 of 100 trials, in {in_cases} cases all of them; audits of one volume share "
        f"its copysets, so their deviations are correlated. None of the {count} deviates more than chance explains "
        f"for that many (each p is at least {least:.2g}, by Bonferroni)."
    )
    return f"{said}\n\n{markdown(head, rows)}"


def of_sealed(cases):
    """Nothing is readable, though many blocks are there."""
    rows = []
    for case, reports in cases:
        blocks = [one["result"]["blocks"] for one in reports]
        files = [one["result"]["files"]["content"] for one in reports]
        for one in blocks + files:
            check(one["sealed"] > 0 and one["readable"] == 0, f"{case}: {one}")
        there = [one["sealed"] / one["total"] for one in blocks]
        rows.append([case, f"{percent(min(there))} to {percent(max(there))}", "0 %"])
    count = sum(len(reports) for _, reports in cases)
    said = (
        f"{count} more audits are of encrypted volumes, for which the model predicts no leakage. In each of them "
        "the compromised units have blocks, and none is readable."
    )
    return f"{said}\n\n{markdown(['case', 'encrypted blocks there', 'readable'], rows)}"


def audits():
    """Tables of all cases, and a summary."""
    plain, sealed = [], []
    with tempfile.TemporaryDirectory(prefix="scree-", dir="/tmp") as folder:
        image = make_image(Path(folder))
        for number, site in enumerate(SITES):
            of_site(image, site, number, plain, sealed)
    return f"{of_plain(plain)}\n\n{of_sealed(sealed)}"
