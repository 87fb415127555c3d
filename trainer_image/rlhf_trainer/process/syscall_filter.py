"""System calls that programs in a sandbox may not make: a seccomp filter in classic BPF, as bubblewrap loads it.

They would give a program memory that no limit counts, another process's memory, namespaces, or a reason to wait for a
CPU. Each fails with ENOSYS, after which libraries use another way.
"""

import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of each machine, in the order of the numbers below."""
CLONE = (56, 220)
"""It may make processes and threads, but no namespaces."""
MEMORY = {
    # memory that is no process's
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
}
"""Each call's number on each machine."""
DENIED = MEMORY | {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # namespaces; no filter can read the flags of clone3, in whose place libraries use clone
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone3": (435, 435),
    # priorities and CPUs, by which a program could have others run before it
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
}

_NAMESPACES = 0x7E020000
"""CLONE_NEW*: clone's flags that make namespaces."""
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _NO_SYSCALL = 0x7FFF0000, 0x50000 | 38
_X32 = 0x40000000
"""Numbers from here on are x86's calls with 32-bit pointers, another way to each of them."""


def syscall_filter(machine: str = platform.machine(), *, makes_sandboxes: bool = False) -> bytes:
    """The filter's instructions, each a `struct sock_filter`; of what `makes_sandboxes` itself it denies MEMORY alone.
    Raises KeyError for a machine that is not in MACHINES."""
    architecture, column = MACHINES[machine], list(MACHINES).index(machine)
    denied, namespaces = (MEMORY, 0) if makes_sandboxes else (DENIED, _NAMESPACES)
    last = len(denied) + 8  # the instruction that denies, to which jumps count from the one after them
    instructions = [
        *((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 0, last - 2, architecture)),
        *((_LOAD, 0, 0, _NUMBER), (_AT_LEAST, last - 4, 0, _X32)),
        *((_EQUAL, last - at - 1, 0, numbers[column]) for at, numbers in enumerate(denied.values(), 4)),
        (_EQUAL, 0, 2, CLONE[column]),
        *((_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 1, 0, namespaces)),
        *((_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NO_SYSCALL)),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


@contextmanager
def filter_pipe(*, makes_sandboxes: bool = False) -> Iterator[int]:
    """A descriptor from which bubblewrap reads the filter once, to be passed to it. Raises as `syscall_filter`."""
    rules = syscall_filter(makes_sandboxes=makes_sandboxes)
    readable, writable = os.pipe()
    try:
        os.write(writable, rules)
        os.close(writable)
        yield readable
    finally:
        os.close(readable)
