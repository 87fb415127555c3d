"""The trainer's ranks talk on the interface of the address that their host gave them."""

import psutil

from rlhf_trainer.settings import interface


def test_the_interface_of_an_address_is_found():
    found = {each.address.split("%")[0]: name for name, own in psutil.net_if_addrs().items() for each in own}
    assert interface("127.0.0.1") == found["127.0.0.1"]
    assert {interface(address) for address in found if address} <= set(found.values())
    assert interface("203.0.113.7") is None
