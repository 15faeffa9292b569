"""Attention behind a cache in standard operators, as onnx's text form with numbers and parts to be put in.

Lines `let a = 1, b = [2, 3], c = 0.5` are constants, numbers like the last of the type of the queries.
"""

from __future__ import annotations

#: case 1 in standard operators: the index of new rows in a cache [batch, heads, positions, size] is [batch, new, heads, 3]
ROWS = """(%(given)s, past_k, past_v, lengths%(tables)s) => (%(turned)sread_k, read_v, before, last%(kept_caches)s) {
    let none = 0, unit = 1, count = %(shared)d, nothing = 0.0
    let one = [1], two = [2], three = [3], flat = [-1], inner = [2, 3], middle = [0, 1, 3], outer = [1, 2, 3]
    let heads = [%(shared)d], rows_dims = [0, 0, %(shared)d, %(size)d], zeros = [0, 0, 0, 0, 0, 0], zero_end = [0]
    %(parts)s
    given_dims = Shape (%(first)s)
    counted = Slice (given_dims, one, two)
    new = Squeeze (counted)
    wide_lengths = Cast <to = 7> (lengths)
    %(newest)s = Reshape (wide_lengths, flat)
    ends = Add (%(newest)s, unit)
    free = Sub (ends, new)
    %(earlier)s = Max (free, none)
    queries = Range (none, new, unit)
    first_place = Unsqueeze (%(earlier)s, one)
    places = Add (first_place, queries)
    %(past_dims)s
    room = Slice (past_dims, two, three)
    positions_of = Squeeze (room)
    %(counted_rows)s
    begin = Unsqueeze (before, one)
    row_places = Add (begin, queries)
    %(rotary)s
    batch_dims = Shape (before)
    batch = Squeeze (batch_dims)
    sequences = Range (none, batch, unit)
    sequence = Unsqueeze (sequences, outer)
    numbers = Range (none, count, unit)
    number = Unsqueeze (numbers, middle)
    place = Unsqueeze (row_places, inner)
    dims = Concat <axis = 0> (batch_dims, counted, heads, one)
    s = Expand (sequence, dims)
    h = Expand (number, dims)
    p = Expand (place, dims)
    index = Concat <axis = 3> (s, h, p)
    %(more)s
    pads = Concat <axis = 0> (zeros, more, zero_end)
    positions = Range (none, positions_of, unit)
    column = Unsqueeze (positions, one)
    filled = Unsqueeze (before, outer)
    kept = Less (column, filled)
    %(kept)s
    longer_k = Pad (kept_k, pads)
    longer_v = Pad (kept_v, pads)
    rows_k = Reshape (%(k)s, rows_dims)
    rows_v = Reshape (v, rows_dims)
    %(new)s
    %(read)s%(keeps)s
}"""
PACKED = """let sizes = [%(width)d, %(shared_width)d, %(shared_width)d]
    %(query)s, k, v = Split <axis = -1> (packed, sizes)"""
#: which row of a cache new positions have: each its own, with room for the whole length
MORE_ROWS = """wide_whole = Cast <to = 7> (whole)
    wholes = Reshape (wide_whole, flat)
    missing = Sub (wholes, room)
    more = Max (missing, none)"""
#: or, of a cache of the window's size, that of what is not dropped: several at once when it is full, here of what was there
#: before, so that attention reads these and all that is new
WINDOW_ROWS = """let window_less_one = %(window_less_one)d
    beyond_window = Sub (positions_of, window_less_one)
    several = Max (beyond_window, unit)
    up = Sub (several, unit)
    over_before = Sub (earlier, positions_of)
    over = Max (over_before, none)
    raised = Add (over, up)
    times = Div (raised, several)
    dropped = Mul (times, several)
    before = Sub (earlier, dropped)
    last = Sub (newest, dropped)"""
WINDOW_MORE = "more = Identity (counted)"
#: and what such a cache keeps then: of each of its rows the row of these, or one of zeros behind them
KEPT_ROWS = """
    over_after = Sub (ends, positions_of)
    over_now = Max (over_after, none)
    raised_now = Add (over_now, up)
    times_now = Div (raised_now, several)
    dropped_now = Mul (times_now, several)
    shift_of = Sub (dropped_now, dropped)
    shift = Unsqueeze (shift_of, one)
    kept_of = Sub (ends, dropped_now)
    kept_now = Unsqueeze (kept_of, one)
    is_kept = Less (positions, kept_now)
    row_kept = Add (positions, shift)
    last_row = Add (positions_of, new)
    row_or_zero = Where (is_kept, row_kept, last_row)
    kept_index = Unsqueeze (row_or_zero, two)
    let a_row = [0, 0, 0, 0, 0, 0, 1, 0]"""
_KEPT = """
    ended_%(x)s = Pad (%(all)sread_%(x)s, a_row)
    in_turn_%(x)s = Transpose <perm = [0, 2, 1, 3]> (ended_%(x)s)
    chosen_%(x)s = GatherND <batch_dims = 1> (in_turn_%(x)s, kept_index)
    """
_KEPT_AS = "present_%(x)s = Transpose <perm = [0, 2, 1, 3]> (chosen_%(x)s)"
KEPT = _KEPT + _KEPT_AS
WIDE_KEPT = _KEPT + "wide_" + _KEPT_AS + "\n    present_%(x)s = Cast <to = 17> (wide_present_%(x)s)"
_TOGETHER = "read_%(x)s = ScatterND (longer_%(x)s, index, new_%(x)s)"
#: where numbers are multiples of scales; of a scale of 0 all are 0
_FILLED = """wide_past_%(x)s = Cast <to = 1> (past_%(x)s)
    wide_kept_%(x)s = Where (kept, wide_past_%(x)s, empty)
    """
_UNITS = """wide_%(x)s = Cast <to = 1> (rows_%(x)s)
    scale_%(x)s = Reshape (%(x)s_scale, scale_dims)
    no_scale_%(x)s = Equal (scale_%(x)s, empty)
    ratio_%(x)s = Div (wide_%(x)s, scale_%(x)s)
    steps_%(x)s = Where (no_scale_%(x)s, empty, ratio_%(x)s)
    """
_WITHIN = """near_%(x)s = Round (steps_%(x)s)
    over_%(x)s = Max (near_%(x)s, least)
    within_%(x)s = Min (over_%(x)s, most)
    """
#: for each cache, by its element type: what is filled, new rows, and both in one; onnxruntime's ScatterND has no float8e4m3fn,
#: to which Cast rounds, and saturates
CACHES = {
    "": ("kept_%(x)s = Where (kept, past_%(x)s, nothing)", "new_%(x)s = Identity (rows_%(x)s)", _TOGETHER),
    "i8": (
        _FILLED + "kept_%(x)s = Cast <to = 3> (wide_kept_%(x)s)",
        _UNITS + _WITHIN + "new_%(x)s = Cast <to = 3> (within_%(x)s)",
        _TOGETHER,
    ),
    "u4": (
        _FILLED + "kept_%(x)s = Cast <to = 2> (wide_kept_%(x)s)",
        _UNITS
        + _WITHIN
        + """middle_%(x)s = Sub (within_%(x)s, least)
    paired_%(x)s = Reshape (middle_%(x)s, pair_dims)
    low_%(x)s = Slice (paired_%(x)s, lows, highs, of_pair)
    high_%(x)s = Slice (paired_%(x)s, highs, beyond, of_pair)
    shifted_%(x)s = Mul (high_%(x)s, sixteen)
    both_%(x)s = Add (low_%(x)s, shifted_%(x)s)
    bytes_%(x)s = Squeeze (both_%(x)s, of_pair)
    new_%(x)s = Cast <to = 2> (bytes_%(x)s)""",
        _TOGETHER,
    ),
    "e4m3": (
        _FILLED + "kept_%(x)s = Identity (wide_kept_%(x)s)",
        _UNITS + "new_%(x)s = Identity (steps_%(x)s)",
        "wide_" + _TOGETHER + "\n    read_%(x)s = Cast <to = 17> (wide_read_%(x)s)",
    ),
}
#: the dimensions of a cache; onnxruntime's Shape has no float8e4m3fn, and it takes a Cast in front of one away
_DIMS = "%(x)s_dims = Shape (%(x)s_k)"
DIMS = {
    "": _DIMS,
    "i8": _DIMS,
    "u4": _DIMS,
    "e4m3": """wide_%(x)s = Cast <to = 1> (%(x)s_k)
    as_large_as_%(x)s = Neg (wide_%(x)s)
    %(x)s_dims = Shape (as_large_as_%(x)s)""",
}
#: constants of caches with scales
STEPS = """let scale_dims = [%(scale_dims)s]
    let pair_dims = [0, 0, 0, -1, 2], lows = [0], highs = [1], beyond = [2], of_pair = [4]
    empty = Constant <value = float {0.0}> ()
    least = Constant <value = float {%(least)d.0}> ()
    most = Constant <value = float {%(most)d.0}> ()
    sixteen = Constant <value = float {16.0}> ()
    """
#: queries and keys with a norm in each head
NORMED = """(%(given)s, q_gain, k_gain) => (normed_q, normed_k%(v)s) {
    let apart_q = [0, 0, %(heads)d, %(size)d], apart_k = [0, 0, %(shared)d, %(size)d]
    let joined_q = [0, 0, %(width)d], joined_k = [0, 0, %(shared_width)d]
    %(parts)s
    heads_q = Reshape (query, apart_q)
    heads_k = Reshape (k, apart_k)
    even_q = SimplifiedLayerNormalization <axis = -1, epsilon = %(q_epsilon)r> (heads_q, q_gain)
    even_k = SimplifiedLayerNormalization <axis = -1, epsilon = %(k_epsilon)r> (heads_k, k_gain)
    normed_q = Reshape (even_q, joined_q)
    normed_k = Reshape (even_k, joined_k)
}"""
TURNED = """%(y)s = com.microsoft.RotaryEmbedding <interleaved = %(interleaved)d, num_heads = %(heads)d,
        rotary_embedding_dim = %(part)d> (%(x)s, %(places)s, cos, sin)"""
ATTENTION = """(q, stored_k, stored_v, before, last, head_sink, bias, k_scale, v_scale) => (y) {
    let zero = 0, unit = 1, nothing = 0.0, lowest = -inf, factor = %(scale)r
    let one = [1], two = [2], third = [3], tall = [1, 2, 3], four = [1, 2, 3, 4]
    let apart = [0, 0, %(shared)d, %(group)d, %(size)d], joined = [0, 0, %(width)d]
    %(read)s
    grouped = Reshape (q, apart)
    own = Transpose <perm = [0, 2, 3, 1, 4]> (grouped)
    cache_dims = Shape (k)
    counted = Slice (cache_dims, two, third)
    room = Squeeze (counted)
    keys = Range (zero, room, unit)
    query_dims = Shape (q)
    news = Slice (query_dims, one, two)
    new = Squeeze (news)
    queries = Range (zero, new, unit)
    wide_k = Unsqueeze (k, two)
    across = Transpose <perm = [0, 1, 2, 4, 3]> (wide_k)
    product = MatMul (own, across)
    raw = Mul (product, factor)
    %(capped)s
    %(biased)s
    place = Unsqueeze (queries, one)
    begin = Unsqueeze (before, four)
    at = Add (begin, place)
    %(seen)s
    %(sunk)s
    scores = Where (seen, joint, lowest)
    shares = Softmax <axis = -1> (scores)
    %(kept)s
    key = Unsqueeze (keys, one)
    end = Unsqueeze (last, tall)
    written = LessOrEqual (key, end)
    clean_v = Where (written, v, nothing)
    wide_v = Unsqueeze (clean_v, two)
    mean = MatMul (weights, wide_v)
    turned = Transpose <perm = [0, 3, 1, 2, 4]> (mean)
    y = Reshape (turned, joined)
}"""
#: scales of any shape as a list
FLAT = """(k_scale, v_scale) => (flat_k, flat_v) {
    let flat = [-1]
    flat_k = Reshape (k_scale, flat)
    flat_v = Reshape (v_scale, flat)
}"""
#: a bias for as many keys as the present caches have room for; what is added to the others is hidden
PADDED = """(bias, cache_k) => (padded) {
    let two = [2], three = [3], four = [4], zeros = [0, 0, 0, 0, 0, 0, 0]
    %(cache_dims)s
    room = Slice (cache_dims, two, three)
    bias_dims = Shape (bias)
    given = Slice (bias_dims, three, four)
    missing = Sub (room, given)
    pads = Concat <axis = 0> (zeros, missing)
    padded = Pad (bias, pads)
}"""
#: parts of the text of attention: with a soft cap and without, and likewise
CAPPED = """let cap = %(cap)r
    share = Div (raw, cap)
    bent = Tanh (share)
    capped = Mul (bent, cap)"""
UNCAPPED = "capped = Identity (raw)"
#: keys and values of caches of floats and of those with scales
_FLOATS = """k = Identity (stored_k)
    v = Identity (stored_v)"""
_WIDE = """wide_stored_k = Cast <to = 1> (stored_k)
    wide_stored_v = Cast <to = 1> (stored_v)
    """
#: rows of bytes, all in turn, each number of 4 bits less 8, by blocks of a scale that is 1
_UNPACKED = """let blocks_of_row = [%(blocks)d], front = [0], lead = [3]
    stored_dims = Shape (stored_k)
    leading = Slice (stored_dims, front, lead)
    counted_sequences = Slice (stored_dims, front, one)
    sequences = Squeeze (counted_sequences)
    sequence = Range (zero, sequences, unit)
    whole_dims = Concat <axis = 0> (leading, blocks_of_row)
    whole_scale = Constant <value = float {1.0}> ()
    scales = Expand (whole_scale, whole_dims)
    wide_stored_k = com.microsoft.GatherBlockQuantized <bits = 4, block_size = %(block)d, gather_axis = 0,
        quantize_axis = 3> (stored_k, sequence, scales)
    wide_stored_v = com.microsoft.GatherBlockQuantized <bits = 4, block_size = %(block)d, gather_axis = 0,
        quantize_axis = 3> (stored_v, sequence, scales)
    """
_SCALED = """let channels = [%(channels)s]
    channels_k = Reshape (k_scale, channels)
    channels_v = Reshape (v_scale, channels)
    scaled_k = Mul (wide_stored_k, channels_k)
    scaled_v = Mul (wide_stored_v, channels_v)
    k = Cast <to = %(type)d> (scaled_k)
    v = Cast <to = %(type)d> (scaled_v)"""
READ = {"": _FLOATS, "i8": _WIDE + _SCALED, "e4m3": _WIDE + _SCALED, "u4": _UNPACKED + _SCALED}
BIASED = """let wide_heads = [0, %(bias_shared)d, %(bias_group)d, 0, 0]
    wide_bias = Unsqueeze (bias, one)
    bias_like = Reshape (wide_bias, wide_heads)
    biased = Add (capped, bias_like)"""
UNBIASED = "biased = Identity (capped)"
WINDOWED = """causal = LessOrEqual (keys, at)
    let window = %(window)d
    start = Sub (at, window)
    near = Less (start, keys)
    seen = And (causal, near)"""
CAUSAL = "seen = LessOrEqual (keys, at)"
#: a sink takes its share with the key at a query's own place, which every query sees: their score is log(exp s + exp sink)
SUNK = """%(sink)s
    above = Sub (biased, sink)
    apart_by = Abs (above)
    below = Neg (apart_by)
    more = Softplus (below)
    higher = Max (biased, sink)
    both = Add (higher, more)
    here = Equal (keys, at)
    joint = Where (here, both, biased)"""
SINK = """let per_head = [%(shared)d, %(group)d, 1, 1]
    sink = Reshape (head_sink, per_head)"""
SMOOTH = "let sink = 0.0"
NO_SINK = "joint = Identity (biased)"
SHARED = """let whole = 1.0
    own_part = Sigmoid (above)
    part = Where (here, own_part, whole)
    weights = Mul (shares, part)"""
UNSHARED = "weights = Identity (shares)"
