"""Runs one of the checks of this package: tools/run check NAME [OPTION ...]."""

import pkgutil
import runpy
import sys
from pathlib import Path

CHECKS = sorted(
    module.name
    for module in pkgutil.iter_modules([str(Path(__file__).parent)])
    if not module.ispkg and module.name != "__main__"
)

name = sys.argv[1] if len(sys.argv) > 1 else None
if name not in CHECKS:
    sys.exit(f"usage: tools/run check {{{','.join(CHECKS)}}} [OPTION ...]")
del sys.argv[1]
sys.argv[0] = f"tools/run check {name}"
runpy.run_module(f"scree_tools.check.{name}", run_name="__main__")
