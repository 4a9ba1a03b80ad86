#!/usr/bin/env python3
"""A client that passes files to commd whose file system does not answer.

Usage: hostile_files.py SOCKET FILE USER MODE UUID. MODE is one of:

  - all: passes the files with requests of every kind, on one connection after another
  - unread: sends them on connections that commd does not read yet, and keeps no descriptor itself

In both modes it prints "connected", later "ready", and waits for a line on standard input after each. Then it goes on until it is killed.
"""
import array
import os
import socket
import sys

from raw_client import VERSION, message

KINDS = range(2, 24)
REGISTER, MAP, VIRTUAL_MEMORY = 6, 18, 77
UNIT = 2 << 20
UNREAD_CONNECTIONS = 100


def packets():
    yield b"", 1
    yield b"no request", 3
    for kind in KINDS:
        for count in (1, 2, 20):
            yield message([(1, kind), (kind, {1: kind, 2: 4096})]), count


def connect(path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(5)
    connection.connect(path)
    return connection


def send(connection, packet, fds):
    connection.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def as_memory_of_gpu(path, file, uuid):
    connection = connect(path)
    connection.send(message([(1, 1), (2, {1: VERSION, 2: "hostile"})]))
    connection.recv(65536)
    connection.send(message([(1, 2), (REGISTER, {1: VIRTUAL_MEMORY, 2: 4 * UNIT, 3: uuid, 5: 1})]))
    connection.recv(65536)
    send(connection, message([(1, 3), (MAP, {1: VIRTUAL_MEMORY, 2: UNIT})]), [file])
    answer = connection.recv(65536)
    connection.close()
    return b"not refer to memory of GPU" in answer


def everything(path, file, sent=0):
    """Sends them with a greeting, without one, and with descriptors next to the greeting."""
    for packet, count in packets():
        for greeting in (None, 0, 1):
            connection = connect(path)
            try:
                if greeting is not None:
                    send(connection, message([(1, 1), (2, {1: VERSION, 2: "hostile"})]), [file] * greeting)
                    connection.recv(65536)
                send(connection, packet, [file] * count)
                if sent % 2 == 0:
                    connection.recv(65536)
            except OSError:
                pass
            connection.close()
            sent += 1


def greeted(path):
    for number in range(UNREAD_CONNECTIONS):
        connection = connect(path)
        if number % 4 != 0:
            send(connection, message([(1, 1), (2, {1: VERSION, 2: "hostile"})]), [])
            connection.recv(65536)
        yield connection


def unread(connections, name):
    """Makes commd the last process that has these files open. When commd closes them, their pages are written."""
    for number, connection in enumerate(connections):
        file = os.open(name, os.O_RDWR)
        try:
            send(connection, b"" if number % 3 == 0 else b"no request", [file] * 30)
            send(connection, b"more", [file])
        except PermissionError:
            pass  # the kernel does not pass descriptors from a client that has sent no greeting
        os.close(file)


def main():
    path, name, user, mode, uuid = sys.argv[1:]
    os.setuid(int(user))
    file = os.open(name, os.O_RDWR)
    connections = list(greeted(path)) if mode == "unread" else []
    print("connected", flush=True)
    sys.stdin.readline()
    unread(connections, name)
    os.pwrite(file, b"dirty", 0)
    print("ready", flush=True)
    sys.stdin.readline()
    mapped = mode == "all" and as_memory_of_gpu(path, file, bytes.fromhex(uuid))
    print("refused" if mapped else "no answer", flush=True)
    for connection in connections[::2]:
        connection.close()
    while True:
        try:
            everything(path, file)
        except OSError:
            pass  # commd is stopping


if __name__ == "__main__":
    main()
