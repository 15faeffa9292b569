"""Constants of the cost models that were fitted to measurements of a device, by section of a file in `targets/`.

A constant that every device of a kind has in common, such as the 16 bytes of a copy, stands in the module that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Cpu:
    """The section `cpu`: the engine `block` on a CPU, and libraries there."""

    cache_factor: float  #: bandwidth of caches over that of memory
    statement_us: float  #: microseconds of one statement over a tile
    segment: float  #: bytes side by side with which reads come half way from their slowest to the bandwidth
    scattered: float  #: share of the bandwidth that reads of short pieces reach
    streamed_rate: float  #: share of the rate that few streamed rows reach
    streamed_half: float  #: streamed rows that reach half of that
    packed_rate: float  #: share of the rate that many packed rows reach
    packed_half: float  #: packed rows that reach half of that
    large_pages: (
        float  #: bandwidth of weights that the session has packed, which lie in large pages, over that of others
    )
    single_pages: float  #: the same of one core by itself, over what it reads of others
    panel_rate: float  #: share of the rate that many rows reach with weights that the session has packed
    panel_half: float  #: rows that reach half of that, where there are several
    split_rate: float  #: share of the rate of split products that these reach with packed weights
    split_flops: float  #: vector operations for splitting a number of the other operand
    shrink_flops: float  #: vector operations in the time of scaling a sum behind a running maximum, and adding to it
    row_flops: float  #: vector operations in the time of beginning and ending one reduction
    library_rate: float  #: share of the rate that products of onnxruntime with weights reach
    library_half: float  #: rows that reach half of that, where there are several
    library_deep: float  #: how much longer they take for every doubling of many summed positions
    library_small: float  #: rows and columns with which products of activations reach half of that share
    library_integers: float  #: times as fast as others products of integers of 8 bits are
    library_bandwidth: float  #: share of the bandwidth that onnxruntime reaches
    single_library: float  #: the same of one core by itself, of what one reads
    library_overlap: float  #: share of the shorter of memory and work that its products do at the time of the other
    library_packed: float  #: vector operations in which its products unpack a number, when they have several rows
    library_step: float  #: the same when they have one
    library_bytes: float  #: the same where they multiply bytes, which activations are rounded to
    library_copies: float  #: the same where it copies what it has just computed
    library_special: float  #: share of the rate of vector operations that its elementwise operators reach
    first_cache: int  #: bytes of sums that stay in the first-level cache
    sum_seconds: float  #: seconds for reading and writing a sum beyond it
    overlap: float  #: share of the shorter of memory and work that is done at the time of the other
    convert_flops: float  #: vector operations for converting an element to float32 while it is read
    unpack_flops: float  #: the same for an element that shares its byte with others
    words_flops: float  #: the same for a number of quantised weights that the session has packed
    bytes_rate: float  #: share of the rate of bytes that products reach whose other operand is rounded to them
    bytes_flops: float  #: vector operations for unpacking a number of such weights
    round_flops: float  #: vector operations for rounding a number
    level_flops: float  #: the same for making a byte of a whole number
    copy_flops: float  #: vector operations for reading an element of float32
    crowded: float  #: how much longer a block takes that needs more than half of the second-level cache
    exchange_us: float  #: microseconds for clearing the counters and reading the shares of other blocks
    operator_us: float  #: microseconds of the smallest operator of onnxruntime where these constants were fitted

    @property
    def alone(self) -> Cpu:
        """The same of one core by itself."""
        return replace(self, large_pages=self.single_pages, library_bandwidth=self.single_library)


@dataclass(frozen=True, slots=True)
class Block:
    """The section `block`: the engine `block` on a GPU, and libraries there."""

    cache_factor: float  #: bandwidth of the second-level cache over that of memory
    matrix_efficiency: float  #: share of the matrix rate that generated loops reach
    slower: float  #: how much slower kernels were than the other terms say
    step_us: float  #: microseconds of an iteration: barriers, first bytes
    barrier_us: float  #: microseconds of an iteration for each barrier in it
    single_us: float  #: microseconds of a thread for an element that it loads by itself
    spilled: float  #: how much longer products take whose results the registers do not hold
    exchange_us: float  #: microseconds for clearing the counters and reading the shares of other blocks
    library_rate: float  #: share of the matrix rate that libraries reach
    library_packed: float  #: share of the bandwidth at which their products read quantised weights


@dataclass(frozen=True, slots=True)
class Clusters:
    """The section `clusters`: how many clusters of blocks a device holds at one time."""

    fit: Mapping[int, int]  #: clusters that fit, one block on a multiprocessor, by their blocks; 1: the multiprocessors
    otherwise: float  #: for other numbers of blocks: clusters over multiprocessors

    def share(self, blocks: int) -> float:
        """Clusters of so many blocks that fit, over multiprocessors."""
        return self.fit[blocks] / self.fit[1] if blocks in self.fit else self.otherwise


@dataclass(frozen=True, slots=True)
class Strip:
    """The section `strip`: the engine `strip`."""

    launch_us: float  #: microseconds from launch to launch, with nothing in between
    behind_us: float  #: microseconds more of a launch that reads what the one in front of it wrote
    barrier_us: float  #: microseconds of a barrier of the grid, with all that a stage behind it takes to start
    wave_us: float  #: microseconds of every further wave of blocks
    cluster_us: Mapping[int, float]  #: microseconds of blocks that wait for one another, by their number
    merge_us: float  #: microseconds of a byte that groups merge
    latency_us: float  #: microseconds of an iteration
    chained_us: float  #: microseconds of an iteration with a product of a product
    share_us: float  #: microseconds of an iteration whose warps share columns: they meet twice
    store_us: float  #: microseconds of 16 bytes that every lane of a warp stores on in an iteration
    multiply_us: float  #: microseconds of a matrix instruction in an iteration of one warp
    element_us: float  #: microseconds of an elementwise operation in an iteration of one warp
    issue_multiply_us: float  #: microseconds of a matrix instruction on its part of a multiprocessor
    issue_element_us: float  #: microseconds of an elementwise operation there
    step_us: (
        float  #: microseconds of a step of 16 rows and 32 positions of quantised numbers in an iteration of one warp
    )
    issue_step_us: float  #: microseconds of such a step on its part of a multiprocessor
    computed_price: float  #: elementwise operations in the time of an element of a tile that is computed of tiles
    exact_price: float  #: matrix instructions in the time of as many float32 products
    split_price: float  #: the same where their numbers are split
    stream: float  #: share of the target's bandwidth that plain copies reach
    shallow: (
        float  #: how much longer memory takes over the squared number of stages: groups wait for each of few copies
    )
    in_flight: int  #: bytes that every multiprocessor has to have on their way for that
    most_in_flight: int  #: bytes of one multiprocessor beyond which more bring nothing
    sharpness: float  #: exponent of the bend where the bandwidth is reached
    rise: float  #: share of the bandwidth over bytes on their way, where these are few
    beside: float  #: share of what memory brings beside the rows of a tile that no other block has the use of
    sector: int  #: bytes of a row below which the memory is not used well
    piece_us: float  #: microseconds of a piece of a memory line that a multiprocessor copies
    cache_factor: float  #: bandwidth of the second-level cache over that of memory
    copied: float  #: bytes in a microsecond that one multiprocessor copies at most
    together: float  #: exponent with which what bounds a kernel adds up: the largest counts, equal ones count for more
    operands: float  #: bytes in a microsecond that many warps of a multiprocessor read of shared memory as operands
    half_operands: float  #: warps that reach half of that
    clocks: float  #: clocks of a multiprocessor's matrix units in a microsecond, where four warps multiply together


@dataclass(frozen=True, slots=True)
class Rows:
    """The section `rows`: the engine `rows`."""

    full: float  #: share of the memory's bandwidth that many blocks reach
    clock: float  #: clocks of a multiprocessor in a second
    alone: float  #: share of the rate of instructions that a single warp reaches
    enough_warps: int  #: warps that reach all of it
    access: float  #: instructions that an access to memory counts for
    meet: int  #: instructions of a warp for a reduction
    ahead_us: float  #: microseconds of a dependent launch with what is read asked for ahead
    start_us: float  #: microseconds of a dependent launch without that
    slot_us: float  #: microseconds of a slot more where a thread reduces by itself
    turn_us: float  #: microseconds of one more turn, beside what memory and instructions take
    cache_factor: float  #: bandwidth of the second-level cache over that of memory, for what all rows read
    meet_warp_us: float  #: microseconds of a reduction over lanes of a warp
    meet_block_us: float  #: microseconds of a reduction over the warps of a block
    meet_cluster_us: float  #: microseconds of a reduction over the blocks of a cluster
    block_us: float  #: microseconds from the start of a block that reduces nothing to the start of the next one


@dataclass(frozen=True, slots=True)
class Warpgroup:
    """The section `warpgroup`: the engine `warpgroup`."""

    launch_us: float  #: microseconds from launch to launch, with nothing in between
    share: float  #: of the target's matrix rate that products of loaded tiles reach where nothing else bounds them
    split_share: float  #: the same of a sixth of it, where float32 is split
    meet_split_us: float  #: microseconds of an iteration whose numbers are split, beside products and splitting
    split_rows_us: float  #: microseconds of 4096 elements that consumers split in registers
    split_us: float  #: microseconds of 4096 elements that are split in shared memory
    cluster_us: float  #: microseconds of a launch of clusters that share operands, beside another launch
    deep_share: float  #: of that, where a consumer holds more than 64 rows
    latency_us: float  #: microseconds from the request for a tile until it is there
    copied: float  #: bytes in a microsecond that a multiprocessor is brought at most, all of them together
    together: float  #: exponent with which what bounds such products adds up
    outside: float  #: how much longer an iteration takes whose rows all lie outside of their tensor
    sums_us: float  #: microseconds of blocks that add such products up together, beside what they read of one another
    summed: float  #: bytes in a microsecond that a block reads of the others
    finish_us: float  #: microseconds of a multiply-add of a thread behind the loop, as operators are priced in them
    stored: float  #: bytes in a microsecond that a multiprocessor reads and writes behind the loop
    computed_us: float  #: microseconds of a consumer for 4096 elements of a left operand that is computed
    score_us: float  #: microseconds of one score on a multiprocessor: its exponential, maximum and sum
    meet_us: float  #: microseconds of an iteration with scores: what waits for what
    kept_us: float  #: microseconds less, where left operands stay in registers
    fixed_us: float  #: microseconds of a unit with scores beside its iterations
    exchange_us: float  #: microseconds of blocks that reduce together, with scores


Section = Cpu | Block | Clusters | Strip | Rows | Warpgroup
#: the sections of a target's file by its kind; other kinds have the engine `block` alone
SECTIONS: dict[str, dict[str, type[Section]]] = {
    "cpu": {"cpu": Cpu},
    "cuda": {"block": Block, "clusters": Clusters, "strip": Strip, "rows": Rows, "warpgroup": Warpgroup},
}
