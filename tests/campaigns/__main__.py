"""Run a campaign: ``python -m tests.campaigns NAME --seed S --n N``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests.campaigns import CAMPAIGNS, run, summary


def main(argv: list[str] | None = None) -> int:
    """Run or resume a campaign, tell of failures as they come; exit status 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("name", choices=["list", *CAMPAIGNS], metavar="NAME", help="`list` names all campaigns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=1000, help="trials (default 1000)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="a file of JSON lines (default fedconvex-results/campaigns/)")
    args = parser.parse_args(argv)
    if args.name == "list":
        print("\n".join(f"{name:20} {campaign.what}" for name, campaign in CAMPAIGNS.items()))
        return 0
    if args.out and args.out.suffix == ".json":
        parser.error(f"--out must be a file of JSON lines, and its name not end in .json; got {args.out}: the summary"
                     f" is written to {args.out.with_suffix('.json')}")  # fmt: skip
    path = args.out or Path("fedconvex-results", "campaigns", f"{args.name}-{args.seed}.jsonl")
    for row in run(args.name, args.seed, args.n, path, args.processes):
        if not row["passed"]:
            print(f"trial {row['trial']}: {row['error']}", file=sys.stderr)
    found = summary(path, args.name, args.seed)
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
