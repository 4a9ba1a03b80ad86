#!/usr/bin/env python3
"""One rank of a communicator, for tests: rank.py NAME RANK SIZE MODE [OPTION=VALUE...]

Prints FORMED; READY after the first right result; and at its end the last call's "CODE text". Modes:
  once      one all-reduce, checked
  loop      all-reduces until one fails, or `seconds` have passed (default 60), or `steps` are done
  idle      forms, waits for `seconds`, then runs one all-reduce
  moves     one operation of each of `kinds` (default: gather,scatter,all_to_all), of `count` for each block, on a GPU, checked. The root is rank 1
  split     splits the communicator. The rank `dies` only does what a split does first, an all-gather of color and key, and kills itself
  stream    one all-reduce in the GPU's legacy stream; prints POSTED after posting it; ends when the stream is done
  messages  sends a message of each of `sizes` (bytes, separated by commas) to the next rank, all at once, and receives as many from the rank before;
            repeats this as loop does
Options:
  timeout_ms, op_timeout_ms, count, seconds
  kind      broadcast: posts a broadcast where the others post an all-reduce
  fork      seconds: before READY, forks a child that does nothing for so long, and inherits all but the standard streams
  pattern   a text that fills the payload
  device    a GPU, for all-reduces
  memory    on a GPU: cuda (from cuMemAlloc, the default), comm (from comm_mem_alloc) or pool (from a CUDA memory pool, and registered)
  together  all ranks stop after the same step
  on_loss   as in comm_init: 0 or 1
  aborts    after READY, the rank ends the communicator with comm_abort
  pause     seconds that the rank sleeps after each operation of a loop, so that it leaves the processors to others
  slowest   prints the time of the slowest operation, and the number of operations, at the end
"""
import ctypes  # noqa: F401 (it is imported here, because the installed Python keeps it compiled)
import os
import sys
import time  # noqa: F401

# Thousands of ranks start. So Python keeps the modules of the tests compiled, too, in the build's folder.
sys.pycache_prefix, sys.dont_write_bytecode = os.path.join(os.path.abspath(os.environ.get("COMMD_BUILD", "build/release")), "tests/bytecode"), False
from rank_modes import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
