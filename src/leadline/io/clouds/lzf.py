"""LZF, the compression of PCD's binary_compressed form."""

from __future__ import annotations

from typing import Any

import numpy as np

from leadline.base.jit import compiled


@compiled()
def decompress(packed: Any, flat: Any) -> int:
    """Fill `flat` from `packed`, both uint8; gives the bytes written, or -1 if the input refers to what is not there.

    A control byte below 32 is followed by that many bytes plus one; others repeat what came before. Three bits of it
    hold the length less 2, with 7 meaning that another byte is added; five bits and the next byte hold how far back the
    copy begins, less 1. Copies may overlap what they write.
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
