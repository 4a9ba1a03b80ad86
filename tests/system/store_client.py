#!/usr/bin/env python3
"""One process with a store, for tests: store_client.py NAME CALL [ARGUMENT...]

  add KEY DELTA    prints the sum
  set KEY VALUE    prints OK
  get KEY SECONDS  prints WAITS once the store is open, then the value
  hold             prints OPEN, and keeps the store open until it is killed

After a failure it prints "CODE text".
"""
import sys
import time

from keys import Client, Failed


def work(name, call, arguments):
    store = Client().store(name)
    if call == "add":
        print(store.add(arguments[0], int(arguments[1])))
    elif call == "set":
        store.set(arguments[0], arguments[1].encode())
        print("OK")
    elif call == "get":
        print("WAITS", flush=True)
        print(store.get(arguments[0], float(arguments[1])).decode())
    elif call == "hold":
        print("OPEN", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    try:
        work(sys.argv[1], sys.argv[2], sys.argv[3:])
    except Failed as failure:
        print(failure)
