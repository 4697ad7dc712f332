"""Triton kernels of the gated delta rule: a program holds rows of one head's matrix in registers for all its steps.

One program owns BLOCK rows of S (value channels) of one lane and value head, so a matrix is read once, and a step is
two reductions along its rows. A step's output is written as d · S q̂ + e (k̂ · q̂), which needs only the matrix before
the step: both reductions run side by side. `advance` is one fused multiply-add everywhere, so the matrix that a replay
leaves has the bits that verification and prefill saw.
"""

# Triton's constants and launch options are not what a kernel's signature says.
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import triton
import triton.language as tl

_NORM_EPS = tl.constexpr(1e-6)
_LINEAR_FROM = tl.constexpr(20.0)


@triton.jit
def advance(state, decay, correction, key):
    """S ← d · S + e k̂ᵀ."""
    return tl.fma(correction[:, None], key[None, :], decay * state)


@triton.jit
def steps(
    qkv_ptr, a_ptr, b_ptr, a_log_ptr, dt_bias_ptr, matrix_ptr, out_ptr,
    slots_ptr, lengths_ptr, counts_ptr, targets_ptr, corrections_ptr, keys_ptr, decays_ptr,
    width, record_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    PADDED_DK: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """All active rows of a lane; FORM says what is kept: "verify" records, "prefill" the end, "columns" every state."""
    lane, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    key_head = head // (HV // HK)
    channel, value_row = tl.arange(0, PADDED_DK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_key, in_value = channel < DK, value_row < DV
    count, slot = tl.load(counts_ptr + lane), tl.load(slots_ptr + lane)
    place = value_row[:, None] * DK + channel[None, :]
    in_matrix = in_value[:, None] & in_key[None, :]
    known = (tl.load(lengths_ptr + lane) > 0) & (count > 0)
    own = matrix_ptr + (slot * HV + head) * DV * DK + place
    state = tl.load(own, mask=in_matrix & known, other=0.0)

    rate_scale = tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    row_stride = 2 * HK * DK + HV * DV
    base = qkv_ptr + lane * width * row_stride
    query_place, value_place = key_head * DK + channel, 2 * HK * DK + head * DV + value_row
    # One row ahead, so that its loads are under way during a step.
    first = count > 0
    query = tl.load(base + query_place, mask=in_key & first, other=0.0)
    key = tl.load(base + HK * DK + query_place, mask=in_key & first, other=0.0)
    value = tl.load(base + value_place, mask=in_value & first, other=0.0)
    a = tl.load(a_ptr + lane * width * HV + head, mask=first, other=0.0)
    b = tl.load(b_ptr + lane * width * HV + head, mask=first, other=0.0)
    for row in range(count):
        more = row + 1 < count
        ahead = base + (row + 1) * row_stride
        next_query = tl.load(ahead + query_place, mask=in_key & more, other=0.0)
        next_key = tl.load(ahead + HK * DK + query_place, mask=in_key & more, other=0.0)
        next_value = tl.load(ahead + value_place, mask=in_value & more, other=0.0)
        next_a = tl.load(a_ptr + (lane * width + row + 1) * HV + head, mask=more, other=0.0)
        next_b = tl.load(b_ptr + (lane * width + row + 1) * HV + head, mask=more, other=0.0)

        q, k = query.to(tl.float32), key.to(tl.float32)
        q = q / tl.sqrt(tl.sum(q * q, 0) + _NORM_EPS) * (DK**-0.5)
        k = k / tl.sqrt(tl.sum(k * k, 0) + _NORM_EPS)
        raw = a.to(tl.float32) + bias
        decay = tl.exp(-rate_scale * tl.where(raw > _LINEAR_FROM, raw, tl.log(1 + tl.exp(raw))))
        beta = (1 / (1 + tl.exp(-b.to(tl.float32)))).to(b_ptr.dtype.element_ty).to(tl.float32)
        against_key = tl.sum(state * k[None, :], 1)
        against_query = tl.sum(state * q[None, :], 1)
        correction = beta * (value.to(tl.float32) - decay * against_key)
        output = decay * against_query + correction * tl.sum(k * q, 0)
        state = advance(state, decay, correction, k)

        out_place = ((lane * width + row) * HV + head) * DV + value_row
        tl.store(out_ptr + out_place, output.to(out_ptr.dtype.element_ty), mask=in_value)
        if FORM == "verify":
            record = lane * record_rows + row
            tl.store(corrections_ptr + (record * HV + head) * DV + value_row, correction, mask=in_value)
            # All programs of a head know its decay, and all of a key head its key: the first of each writes.
            tl.store(decays_ptr + record * HV + head, decay, mask=tl.program_id(0) == 0)
            writes_key = (tl.program_id(0) == 0) & (head % (HV // HK) == 0)
            tl.store(keys_ptr + (record * HK + key_head) * DK + channel, k, mask=in_key & writes_key)
        if FORM == "columns":
            target = tl.load(targets_ptr + lane * width + row)
            tl.store(matrix_ptr + (target * HV + head) * DV * DK + place, state, mask=in_matrix)
        query, key, value, a, b = next_query, next_key, next_value, next_a, next_b
    if FORM == "prefill":
        tl.store(own, state, mask=in_matrix & first)
    for row in range(count, width):
        out_place = ((lane * width + row) * HV + head) * DV + value_row
        tl.store(out_ptr + out_place, tl.zeros((BLOCK,), out_ptr.dtype.element_ty), mask=in_value)


@triton.jit
def replay(
    matrix_ptr, corrections_ptr, keys_ptr, decays_ptr, slots_ptr, lengths_ptr, counts_ptr,
    second_slots_ptr, second_counts_ptr, record_rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    PADDED_DK: tl.constexpr, BLOCK: tl.constexpr, HAS_BOUNDARY: tl.constexpr,
):  # fmt: skip
    """Published records of a lane into its matrix, and at the boundary into a second one."""
    lane, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    count = tl.load(counts_ptr + lane)
    if count > 0:
        channel, value_row = tl.arange(0, PADDED_DK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        in_key, in_value = channel < DK, value_row < DV
        place = value_row[:, None] * DK + channel[None, :]
        in_matrix = in_value[:, None] & in_key[None, :]
        own = matrix_ptr + (tl.load(slots_ptr + lane) * HV + head) * DV * DK + place
        state = tl.load(own, mask=in_matrix & (tl.load(lengths_ptr + lane) > 0), other=0.0)
        stop, second = count, count
        if HAS_BOUNDARY:
            stop, second = tl.load(second_counts_ptr + lane), tl.load(second_slots_ptr + lane)
        keys = keys_ptr + (lane * record_rows * HK + head // (HV // HK)) * DK + channel
        corrections = corrections_ptr + (lane * record_rows * HV + head) * DV + value_row
        decays = decays_ptr + lane * record_rows * HV + head
        key, correction = tl.load(keys, mask=in_key, other=0.0), tl.load(corrections, mask=in_value, other=0.0)
        decay = tl.load(decays)
        for row in range(count):
            more = row + 1 < count
            next_key = tl.load(keys + (row + 1) * HK * DK, mask=in_key & more, other=0.0)
            next_correction = tl.load(corrections + (row + 1) * HV * DV, mask=in_value & more, other=0.0)
            next_decay = tl.load(decays + (row + 1) * HV, mask=more, other=0.0)
            state = advance(state, decay, correction, key)
            if HAS_BOUNDARY:
                snapshot = matrix_ptr + (second * HV + head) * DV * DK + place
                tl.store(snapshot, state, mask=in_matrix & (row + 1 == stop))
            key, correction, decay = next_key, next_correction, next_decay
        tl.store(own, state, mask=in_matrix)


@triton.jit
def norm_gate(o_ptr, z_ptr, weight_ptr, y_ptr, rows, width, eps,
              SILU: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Rows of o normalised, weighted and gated, rounded where the card says."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, PADDED)
    inside = (row[:, None] < rows) & (channel[None, :] < width)
    place = row[:, None].to(tl.int64) * width + channel[None, :]
    narrow = o_ptr.dtype.element_ty
    o = tl.load(o_ptr + place, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + channel, mask=channel < width, other=0.0)
    normed = o / tl.sqrt(tl.sum(o * o, 1) / width + eps)[:, None]
    weighted = normed.to(narrow).to(tl.float32) * weight.to(tl.float32)[None, :]
    if weight_ptr.dtype.element_ty == narrow:
        weighted = weighted.to(narrow).to(tl.float32)
    opened = 1 / (1 + tl.exp(-z))
    if SILU:
        opened = opened * z
    tl.store(y_ptr + place, (weighted * opened).to(narrow), mask=inside)
