#!/usr/bin/env python3
"""One attacking process: local_attack.py SOCKET USER MODULE.NAME SECONDS INDEX. Prints what commd answered, as JSON."""
import importlib
import os
import signal
import sys
import time
import traceback

import wire


def main():
    path, user, name, seconds, index = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
    module, function = name.split(".")
    attack = getattr(importlib.import_module(module), function)
    wire.become(user)
    code = 0
    try:
        attack(path, time.monotonic() + seconds, index)
    except OSError as refused:
        wire.SAID.texts.setdefault("ended", str(refused))
    except Exception as ended:  # the attack wants to be killed, or has a mistake
        if type(ended).__name__ == "Gone":
            code = -1
        else:
            traceback.print_exc()
            code = 1
    wire.SAID.print()
    if code == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


if __name__ == "__main__":
    main()
