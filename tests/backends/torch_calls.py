"""A program of its own: registers libmirage_torch.so with a stand-in for PyTorch and calls operators; prints JSON.

Usage: torch_calls.py STAND_IN LIBRARY
"""

import ctypes
import json
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32, I64, CPU, CUDA = 6, 4, 0, 1


class StandIn:
    """The stand-in, with the library of operators loaded behind it."""

    def __init__(self, stand_in: str, library: str) -> None:
        self.lib = ctypes.CDLL(stand_in, ctypes.RTLD_GLOBAL)
        ctypes.CDLL(library)
        self.lib.stand_in_tensor.restype = ctypes.c_void_p
        self.lib.stand_in_schemas.restype = ctypes.c_char_p

    def tensor(self, a: NDArray[Any], dtype: int, device: int) -> int:
        dims = (ctypes.c_int64 * 8)(*a.shape)
        strides = (ctypes.c_int64 * 8)(*(s // a.itemsize for s in a.strides))
        made = self.lib.stand_in_tensor(
            ctypes.c_int64(a.ndim), dims, strides, dtype, device, ctypes.c_void_p(a.__array_interface__["data"][0])
        )
        return int(made)

    def call(self, name: str, *inputs: NDArray[Any], dtype: int = F32, device: int = CPU) -> Any:
        """The elements of the only output, or the message of what went wrong."""
        stack = (ctypes.c_uint64 * 8)(*(self.tensor(a, dtype, device) for a in inputs))
        message = ctypes.create_string_buffer(1024)
        if self.lib.stand_in_call(
            name.encode(), stack, ctypes.c_uint64(len(inputs)), ctypes.c_uint64(1), message, ctypes.c_size_t(1024)
        ):
            return message.value.decode()
        made, data, sizes, rank = ctypes.c_void_p(stack[0]), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64()
        self.lib.aoti_torch_get_data_ptr(made, ctypes.byref(data))
        self.lib.aoti_torch_get_sizes(made, ctypes.byref(sizes))
        self.lib.aoti_torch_get_dim(made, ctypes.byref(rank))
        shape = (ctypes.c_int64 * rank.value).from_address(sizes.value or 0)[:]
        count = int(np.prod(shape))
        found = np.array((ctypes.c_float * max(count, 1)).from_address(data.value or 0)[:count]).reshape(shape)
        self.lib.aoti_torch_delete_tensor_object(made)
        return found.tolist()


def main() -> None:
    t = StandIn(*sys.argv[1:3])
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = {
        "schemas": t.lib.stand_in_schemas().decode().splitlines(),
        "dense": t.call("CPU:affine_a0", x),
        "turned": t.call("CPU:affine_a0", np.ascontiguousarray(x.T).T),
        "empty": t.call("CPU:affine_a0", x[:0]),
        "type": t.call("CPU:affine_a0", x, dtype=I64),
        "rank": t.call("CPU:affine_a0", x[0]),
        "width": t.call("CPU:affine_a0", np.ascontiguousarray(x[:, :3])),
        "device": t.call("CPU:affine_a0", x, device=CUDA),
        "cuda": t.call("CUDA:affine_a0", x),
        "live": t.lib.stand_in_live(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
