"""Moves frames from one interface to another after a delay, in order, as the queueing discipline netem does.

    delay.py FROM TO MILLISECONDS JITTER

Each frame waits up to JITTER milliseconds longer, at random. Without any, phase effects decide which of two streams
fills the last place of a short queue (Floyd and Jacobson 1991, section 2), and thus the shares.
"""

import collections
import random
import select
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET = 263
# Frames carry the kernel's notes on checksums that are not computed yet.
PACKET_VNET_HDR = 15


def open_on(interface, protocol):
    """Opens a socket that receives the interface's frames of a protocol; 0: none."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    opened.bind((interface, protocol))
    return opened


def main():
    """Moves frames until the process is stopped."""
    source, target, delay = open_on(sys.argv[1], ETH_P_ALL), open_on(sys.argv[2], 0), float(sys.argv[3]) / 1e3
    jitter, latest = float(sys.argv[4]) / 1e3, 0.0
    source.setblocking(False)
    held = collections.deque()
    while True:
        now = time.monotonic()
        while held and held[0][0] <= now:
            try:
                target.send(held.popleft()[1])
            except OSError:
                pass  # The interface is removed, or its queue is full: the frame is lost.
        select.select([source], [], [], max(0.0, held[0][0] - now) if held else None)
        try:
            while True:
                frame = source.recv(65_600)
                latest = max(latest, time.monotonic() + delay + jitter * random.random())
                held.append((latest, frame))
        except BlockingIOError:
            pass
        except OSError:
            return  # The interface is removed.


main()
