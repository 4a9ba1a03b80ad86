"""A name server with SRV and A records, for tests. It reads its zone, a file in JSON, for each question:

{"services": {"_commd._udp.test": [["a.test", 7400], ...]}, "hosts": {"a.test": "10.97.0.1"}, "ttl": 1, "mode": "ok"}

mode: "ok", "refuse" (SERVFAIL), "cut" (by UDP, every answer is cut short, so that clients ask by TCP), "loop" (the targets' compression points to itself).

usage: dns_server.py ADDRESS ZONE
"""
import json
import socketserver
import struct
import sys
import threading

A, SRV, IN = 1, 33, 1
RESPONSE, CUT = 0x8580, 0x0200
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3


def name_bytes(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def read_name(message, at):
    labels = []
    while message[at]:
        labels.append(message[at + 1:at + 1 + message[at]].decode())
        at += message[at] + 1
    return ".".join(labels), at + 1


def records(zone, name, kind):
    """Returns the data of each record, or None if there is no such name."""
    if name in zone["services"]:
        target = (lambda host: b"\xc0\x0c") if zone["mode"] == "loop" else name_bytes
        return [struct.pack("!HHH", 0, 10, port) + target(host) for host, port in zone["services"][name]] if kind == SRV else []
    if name in zone["hosts"]:
        return [bytes(int(part) for part in zone["hosts"][name].split("."))] if kind == A else []
    return None


def answer(message, zone, by_udp):
    number, flags = struct.unpack("!HH", message[:4])
    name, end = read_name(message, 12)
    kind = struct.unpack("!H", message[end:end + 2])[0]
    question = message[12:end + 4]
    found = records(zone, name.lower(), kind)
    code = SERVER_FAILURE if zone["mode"] == "refuse" else NO_SUCH_NAME if found is None else NO_ERROR
    cut = zone["mode"] == "cut" and by_udp and kind == SRV
    found = [] if code or cut else found
    header = struct.pack("!HHHHHH", number, RESPONSE | (flags & 0x0100) | (CUT if cut else 0) | code, 1, len(found), 0, 0)
    return header + question + b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, IN, zone["ttl"], len(data)) + data for data in found)


def zone_of(server):
    with open(server.zone_path) as file:
        return json.load(file)


class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        message, socket = self.request
        socket.sendto(answer(message, zone_of(self.server), True), self.client_address)


class Tcp(socketserver.StreamRequestHandler):
    def handle(self):
        size = struct.unpack("!H", self.rfile.read(2))[0]
        reply = answer(self.rfile.read(size), zone_of(self.server), False)
        self.wfile.write(struct.pack("!H", len(reply)) + reply)


def main():
    address, zone_path = (sys.argv[1], 53), sys.argv[2]
    socketserver.TCPServer.allow_reuse_address = True
    servers = [socketserver.UDPServer(address, Udp), socketserver.TCPServer(address, Tcp)]
    for server in servers:
        server.zone_path = zone_path
    threading.Thread(target=servers[1].serve_forever, daemon=True).start()
    print("here", flush=True)
    servers[0].serve_forever()


if __name__ == "__main__":
    main()
