"""Cases that every rank of a process group runs in the same order. As a program, this is one rank.

    cases.py INIT [NAME...]     RANK and WORLD_SIZE say which rank this is

Four ranks run the cases for four ranks. Any other number of ranks runs the other cases. Each line that a rank prints is a JSON object: the case's
name, its failure or null, and the reason why it was skipped or null. Data differ per rank and element, and outputs are poisoned first.
"""
import datetime
import faulthandler
import json
import os
import sys
import traceback
import unittest

import torch
import torch.distributed as dist

import cases_checkpoint  # noqa: F401 (each of these adds its cases)
import cases_collectives  # noqa: F401
import cases_parallel  # noqa: F401
import cases_works  # noqa: F401
import cases_wrong  # noqa: F401
from case import CASES, CASES_OF_FOUR

HANG_S = 15


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cases = CASES_OF_FOUR if size == 4 else CASES
    torch.set_num_threads(1)
    dist.init_process_group("commd", init_method=sys.argv[1], rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    for name in sys.argv[2:] or cases:
        failure = skipped = None
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            cases[name](rank, size)
        except unittest.SkipTest as reason:
            skipped = str(reason)
        except BaseException:
            failure = traceback.format_exc()
        print(json.dumps({"case": name, "failure": failure, "skipped": skipped}), flush=True)
        if failure:
            break  # the ranks are out of step
    dist.destroy_process_group()


if __name__ == "__main__":
    import commd.torch  # noqa: F401 (the package may not be installed: this registers the backend)
    main()
