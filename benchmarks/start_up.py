"""Wall time of the commands that look and decide, against starting Python at all.

    python benchmarks/start_up.py [--rounds 15]

Each round runs `python -c pass` and every command once, in turn; the ratio is
taken within a round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import autostrategy": ["-c", "import autostrategy"],
    "autostrategy probe --json": ["-m", "autostrategy", "probe", "--json"],
    "autostrategy plan --json": ["-m", "autostrategy", "plan", "--json"],
    "autostrategy --help": ["-m", "autostrategy", "--help"],
}


def seconds(arguments: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = [
        {name: seconds(arguments) for name, arguments in COMMANDS.items()}
        for _ in range(parser.parse_args().rounds)
    ]
    print("| command | seconds | times `python -c pass` |")
    print("| --- | --- | --- |")
    for name in COMMANDS:
        own = [each[name] for each in rounds]
        ratio = [each[name] / each["python -c pass"] for each in rounds]
        print(
            f"| `{name}` | {statistics.median(own):.3f} ({min(own):.3f} to {max(own):.3f}) "
            f"| {statistics.median(ratio):.1f} ({min(ratio):.1f} to {max(ratio):.1f}) |"
        )


if __name__ == "__main__":
    main()
