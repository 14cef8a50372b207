"""LZF decompression, which PCD's binary_compressed format uses.

It is written here because the format has only two kinds of blocks; a package would be a dependency for one encoding of
one file format.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from leadline.base.jit import compiled


@compiled()
def decompress(packed: Any, flat: Any) -> int:
    """Decompress `packed` into `flat`, both uint8; returns the number of bytes written, or -1 if the input is damaged.

    A control byte n below 32 is followed by n + 1 literal bytes. Any other control byte is a copy of earlier output:
    its upper three bits hold the length less 2, where 7 means that the next byte is added; its lower five bits and the
    next byte hold the distance back to the start of the copy, less 1. A copy may overlap its own output.
    """
    read, written = 0, 0
    while read < len(packed):
        control = np.int64(packed[read])
        read += 1
        if control < 32:
            length = control + 1
            if read + length > len(packed) or written + length > len(flat):
                return -1
            for _ in range(length):
                flat[written] = packed[read]
                written += 1
                read += 1
            continue
        length = (control >> 5) + 2
        if control >> 5 == 7:
            if read >= len(packed):
                return -1
            length += np.int64(packed[read])
            read += 1
        if read >= len(packed):
            return -1
        source = written - ((control & 31) << 8) - np.int64(packed[read]) - 1
        read += 1
        if source < 0 or written + length > len(flat):
            return -1
        for _ in range(length):
            flat[written] = flat[source]
            written += 1
            source += 1
    return written
