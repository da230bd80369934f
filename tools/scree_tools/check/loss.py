"""Eight unit daemons, any two of which are killed while a volume is written.

  tools/run check loss                     every pair, with three replicas and with 4+2: half an hour
  tools/run check loss --pairs N           N pairs of each, chosen at random
  tools/run check loss --seed S            the same pairs in the same order, and the same content

For each pair, on daemons over mutual TLS: every block of the volume is overwritten, and
both daemons are killed (kill -9) one after the other meanwhile; every block is verified
without them. Then one of them returns with its data, the other one is lost with its data,
and a new daemon replaces it. Everything is repaired and then scrubbed: no slot may be
rotten, no block may have too few copies. Every block is verified again.
"""

import argparse
import itertools
import random
import shutil
import time

from scree_tools.common.daemons import Daemons
from scree_tools.common.fio import Fio
from scree_tools.common.process import TARGET, check, main
from scree_tools.common.service import until

FOLDER = TARGET / "loss"
MIB = 1 << 20
SIZE = 64 * MIB
# Writing must last longer than killing two daemons.
RATE = "16m"
# Number of pairs on one site.
PAIRS_A_SITE = 7
REDUNDANCIES = [["--replicas", "3"], ["--erasure", "4+2"]]


def say(text):
    print(f"{time.monotonic() - BEGUN:5.0f} s  {text}", flush=True)


def is_well(status):
    # Deletions wait until everything is repaired, and are retried.
    return status["state"] == "ok" and status["degraded_blocks"] == 0


def round_of(site, uri, pair, seed):
    """Kills and replaces one pair of daemons as in the head."""
    one, other = pair
    fio = Fio.write(uri, SIZE, seed, FOLDER, RATE)
    time.sleep(0.7)
    one.kill()
    time.sleep(0.7)
    check(fio.is_running(), "fio was through before two were killed")
    other.kill()
    fio.wait()
    # Everything is on units: nothing is read from the journal.
    site.settle("disk")
    Fio.verify(uri, SIZE, seed, FOLDER).wait()
    one.start()
    site.lose(other)
    site.operator("unit", "remove", other.name, "--lost")
    site.add()
    site.wait_until_well()
    site.wait_until_repaired()
    check(site.operator("unit", "scrub")["copysets"] > 0, "nothing was scrubbed")
    site.wait_until_repaired()
    # Otherwise there are blocks with too few copies, or rotten slots.
    until("all is well", lambda: is_well(site.operator("status")), 60)
    Fio.verify(uri, SIZE, seed, FOLDER).wait()
    site.check_running()


def try_out(redundancy, pairs, random_of):
    """Runs pairs on a site of its own: each replaced unit adds copysets to it."""
    site = Daemons(
        FOLDER / "-".join(redundancy).strip("-"),
        8,
        agent=("--journal-size", "16M"),
        controller=("--grace", "0s", "--overcommit", 100000),
    )
    try:
        site.create("disk", SIZE, *redundancy)
        uri = site.export("disk")
        for first, second in pairs:
            returned, lost = random_of.sample([first, second], 2)
            pair = [site.stores[returned], site.stores[lost]]
            begun = time.monotonic()
            round_of(site, uri, pair, random_of.randrange(1 << 31))
            names = " and ".join(store.name for store in pair)
            say(f"  {names}: {time.monotonic() - begun:.0f} s")
            # The new daemon has the number of the lost one.
            site.stores.insert(lost, site.stores.pop())
    finally:
        site.stop()
    shutil.rmtree(site.folder)


def loss():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments = parser.parse_args()
    random_of = random.Random(arguments.seed)
    say(f"seed {arguments.seed}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for redundancy in REDUNDANCIES:
        pairs = list(itertools.combinations(range(8), 2))
        random_of.shuffle(pairs)
        pairs = pairs[: arguments.pairs]
        for begin in range(0, len(pairs), PAIRS_A_SITE):
            some = pairs[begin : begin + PAIRS_A_SITE]
            say(f"{' '.join(redundancy)}, pairs {begin + 1} to {begin + len(some)} of {len(pairs)}:")
            try_out(redundancy, some, random_of)
    say("nothing was lost")
    shutil.rmtree(FOLDER)


BEGUN = time.monotonic()
if __name__ == "__main__":
    main(loss)
