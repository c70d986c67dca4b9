"""Trials with and without metrics in turns on one PostgreSQL server: what reading costs the load.

Each pair is one trial that reads machine and server once a second and one that does not
(`design.metrics`), in an order that alternates, each on a freshly loaded database of a server in
memory, so that the processors are the limit. The ratio of a pair is with over without: tps
and CPU of the load threads for each. The table gives the Hodges-Lehmann estimate over the
pairs with its exact 95 % signed-rank interval. It should hold 1, or lie within 0.99 and 1.01.
"""

from __future__ import annotations

import argparse
import functools

from common import in_turns, print_headings, print_row
from pgbench import ours, server


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--protocol", default="prepared")
    options = parser.parse_args()
    with server(options.clients) as (socket, port):
        trial = functools.partial(ours, socket, port, "tpcb", options)
        runs = {
            "with": functools.partial(trial, {"metrics": True}),
            "without": functools.partial(trial, {"metrics": False}),
        }
        rounds = in_turns("tpcb", options.pairs, runs)
    print(f"\n{options.pairs} pairs of {options.seconds} s, {options.clients} clients\n")
    print_headings(["metrics"])
    print_row(["with"], rounds, "with", "without")


if __name__ == "__main__":
    main()
