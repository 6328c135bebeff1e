"""Run benchmarks by name, or all: `python -m benchmarks defaults sketch index`."""

from __future__ import annotations

import argparse
import importlib
import platform
from pathlib import Path

NAMES = sorted(p.stem.removesuffix("_bench") for p in Path(__file__).parent.glob("*_bench.py"))


def main() -> None:
    """Run the named benchmarks one after the other and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, rougher figures")
    arguments = parser.parse_args()
    print(f"{platform.machine()} {platform.processor() or ''} Python {platform.python_version()}")
    for name in arguments.names or NAMES:
        print(f"\n## {name}\n")
        importlib.import_module(f"benchmarks.{name}_bench").main(quick=arguments.quick)


if __name__ == "__main__":
    main()
