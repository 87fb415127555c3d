"""Addresses of this process. Imports nothing else of this package: torchrun's process starts with it."""

import psutil


def interface(address: str) -> str | None:
    """The network interface that has an address. By default gloo resolves the host name, which on a node's network may
    give the loopback interface."""
    interfaces = psutil.net_if_addrs().items()
    return next(
        (name for name, own in interfaces for each in own if each.address.split("%")[0] == address), None
    )


def is_loopback(host: str) -> bool:
    """True for an address to which only this machine connects."""
    return host.startswith("127.") or host == "::1"


def listen_host(host: str) -> str:
    """The address to bind to: loopback if only this machine connects, else all interfaces."""
    if is_loopback(host):
        return host
    return "::" if ":" in host else "0.0.0.0"
