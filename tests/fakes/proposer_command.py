"""A command that proposes; its first argument says how well it behaves."""

from __future__ import annotations

import json
import sys
import time


def main(how: str) -> None:
    lines = [json.loads(line) for line in sys.stdin]
    space, *history, ask = lines
    assert "space" in space
    assert ask["ask"]["taken"] >= len(history)
    if how == "dies":
        print("no idea", file=sys.stderr)
        sys.exit(3)
    if how == "sleeps":
        time.sleep(60)
    while how == "floods":
        print("x" * 100_000)
    if how == "babbles":
        print("let me think")
        return
    if how == "wild":
        for line in ('{"pdl": 7}', '{"pdl": [1]}', '{"pdl": "1"}', '{"pdl": 1e999}', '{"pdl": NaN}', "[" * 100_000):
            print(line)
        return
    tried = [entry["trial"]["setting"] for entry in history]
    if how == "stubborn":
        print(json.dumps(tried[0]))
        return
    knobs = space["space"]["knobs"]
    print(json.dumps({"no_such_knob": 1}))  # the first line that can be used counts
    for splits in knobs["max_splits"]:
        for stages in knobs["kv_stages"]:
            print(json.dumps({"ctas_per_sm": 1, "kv_stages": stages, "max_splits": splits, "pdl": 1}))


main(sys.argv[1])
