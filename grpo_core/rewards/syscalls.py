"""A filter of system calls for sandboxes: what gets memory that no limit counts, or a larger piece of the kernel.

It is a classic BPF program over ``struct seccomp_data`` (seccomp(2)), for bubblewrap's ``--seccomp``.
"""

import platform
import struct

# Numbers by architecture: its audit id, clone, clone3, then what is refused.
# memory beside the limits: memfd_create memfd_secret shmget msgget semget mq_open
# other processes and namespaces: ptrace process_vm_readv process_vm_writev unshare setns mount umount2 pivot_root
#   chroot open_tree move_mount fsopen fsmount mount_setattr open_by_handle_at
# rarely needed, often broken: add_key request_key keyctl bpf userfaultfd perf_event_open io_uring_setup kexec_load
#   init_module finit_module
_NUMBERS = {
    "x86_64": (
        0xC000003E, 56, 435,
        (
            319, 447, 29, 68, 64, 240,
            101, 310, 311, 272, 308, 165, 166, 155, 161, 428, 429, 430, 432, 442, 304,
            248, 249, 250, 321, 323, 298, 425, 246, 175, 313,
        ),
    ),
    "aarch64": (
        0xC00000B7, 220, 435,
        (
            279, 447, 194, 186, 190, 180,
            117, 270, 271, 97, 268, 40, 39, 41, 51, 428, 429, 430, 432, 442, 265,
            217, 218, 219, 280, 282, 241, 425, 104, 105, 273,
        ),
    ),
}  # fmt: skip
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _FIRST_ARGUMENT_OFFSET = 0, 4, 16  # low half, on a little-endian machine
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_OTHER_CALLS = 0x40000000  # x86_64's second set of numbers for the same calls
_NEW_NAMESPACES = 0x7E020000  # the flags of clone that ask for one


def filter_program(machine: str = "") -> bytes | None:
    """The program for an architecture (default: this one), or None for one whose numbers are not known here.

    A refused call fails with EPERM; clone3 with ENOSYS, as its flags can't be looked at, which makes the C library use
    clone. Calls by another architecture's convention end the process.
    """
    known = _NUMBERS.get(machine or platform.machine())
    if known is None:
        return None
    architecture, clone, clone3, refused = known
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_AT_LEAST, 0, 1, _OTHER_CALLS),
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_EQUAL, 0, 1, clone3),
        (_RETURN, 0, 0, _ERROR | _ENOSYS),
    ]
    for number in refused:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | _EPERM)]
    lines += [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERROR | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
