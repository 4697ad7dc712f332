"""NumPy reference of the random-number law of FlashInfer 0.7.4's probability samplers.

Written from the documented Philox4x32-10 algorithm and from reading the kernels' control flow; it
holds no FlashInfer code.  Vectorised over rows, so 200k trials are cheap on a CPU.

Law (see sampling.md):
  key        = (seed low 32, seed high 32)
  counter    = (position // 4) in words 0-1, subsequence in words 2-3
  draw(n)    = output word (position % 4) of that block,  position = offset + n
  uniform(x) = fma(float32(x), 2^-32, 2^-33)      -> in (0, 1]
"""

import numpy as np

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
LO = np.uint64(0xFFFFFFFF)
C = np.float32(2.3283064e-10)


def philox4x32_10(ctr, key):
    """ctr: 4 arrays uint32, key: 2 arrays uint32 -> 4 arrays uint32."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint32) for c in ctr)
    k0, k1 = (np.asarray(k, dtype=np.uint32) for k in key)
    with np.errstate(over="ignore"):
        for r in range(10):
            if r:
                k0, k1 = k0 + W0, k1 + W1
            p0, p1 = M0 * c0.astype(np.uint64), M1 * c2.astype(np.uint64)
            h0, l0 = (p0 >> np.uint64(32)).astype(np.uint32), (p0 & LO).astype(np.uint32)
            h1, l1 = (p1 >> np.uint64(32)).astype(np.uint32), (p1 & LO).astype(np.uint32)
            c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
    return c0, c1, c2, c3


def bits(seed, subseq, position):
    """One 32-bit output per element. All arguments broadcast; unsigned 64-bit."""
    seed, subseq, position = np.broadcast_arrays(*(np.asarray(a).astype(np.uint64) for a in (seed, subseq, position)))
    blk, lane = position >> np.uint64(2), (position & np.uint64(3)).astype(np.int64)
    out = philox4x32_10(
        (
            (blk & LO).astype(np.uint32),
            (blk >> np.uint64(32)).astype(np.uint32),
            (subseq & LO).astype(np.uint32),
            (subseq >> np.uint64(32)).astype(np.uint32),
        ),
        ((seed & LO).astype(np.uint32), (seed >> np.uint64(32)).astype(np.uint32)),
    )
    return np.choose(lane, out)


def uniform(seed, subseq, position):
    x = bits(seed, subseq, position).astype(np.float32)  # round to nearest even, as the device cvt
    return (x.astype(np.float64) * np.float64(C) + np.float64(C / np.float32(2))).astype(np.float32)


def _icdf(weights, u, eps):
    """First index whose inclusive prefix exceeds u, else the last index with mass, else -1.
    Also returns a mask of rows whose decision lies within eps of a prefix edge (summation order matters)."""
    w = weights.astype(np.float64)
    cdf = np.cumsum(w, -1)
    hit = (cdf > u[:, None]) & (w > 0)
    idx = np.where(hit.any(-1), hit.argmax(-1), -1)
    nz = w > 0
    last = np.where(nz.any(-1), w.shape[-1] - 1 - nz[:, ::-1].argmax(-1), -1)
    near = (np.abs(cdf - u[:, None]) < eps).any(-1)
    return np.where(idx >= 0, idx, last), near


def sampling_from_probs(probs, seed, subseq, offset, eps=1e-6):
    """probs [N,V] float32 -> (ids, near-edge mask); exactly one draw, not scaled by the row sum."""
    return _icdf(probs, uniform(seed, subseq, offset).astype(np.float64), eps)


def chain(draft_probs, draft_ids, target_probs, seed, subseq, offset, eps=1e-6):
    """draft_probs [N,K,V], draft_ids [N,K], target_probs [N,K+1,V] (float32).
    -> ids [N,K+1] (-1 padded), independent-acceptance count, emitted-draft count, draws used, near-edge mask."""
    n, k, _ = draft_probs.shape
    rows = np.arange(n)
    seed, subseq, offset = (np.broadcast_to(np.asarray(a).astype(np.uint64), (n,)) for a in (seed, subseq, offset))
    U = uniform(seed[:, None], subseq[:, None], offset[:, None] + np.arange(k + 2, dtype=np.uint64)[None])
    q = np.take_along_axis(draft_probs, draft_ids[..., None].astype(np.int64), -1)[..., 0]
    p = np.take_along_axis(target_probs[:, :k], draft_ids[..., None].astype(np.int64), -1)[..., 0]
    ok = (U[:, :k] * q).astype(np.float32) < p  # strict; prefix loop uses draws 0..
    near = np.abs(U[:, :k] * q.astype(np.float64) - p) < eps
    pos = np.where(ok.all(-1), k, (~ok).argmax(-1)) if k else np.zeros(n, np.int64)
    near_any = np.zeros(n, bool)
    for i in range(k):
        near_any |= near[:, i] & (pos >= i)
    acc = pos.copy()
    for i in range(k):  # statistic: position pos redrawn but never counted
        m = pos < i
        acc = acc + (m & ((U[:, i + 1] * q[:, i]).astype(np.float32) < p[:, i]))
    draws = np.where(pos == k, k + 1, k + 2)
    t = target_probs[rows, pos].astype(np.float32)
    d = np.where((pos < k)[:, None], draft_probs[rows, np.minimum(pos, k - 1)], np.float32(0)) if k else np.float32(0)
    w = np.fmax(t - d, np.float32(0))  # fmaxf: a NaN difference carries no mass
    u = uniform(seed, subseq, offset + (draws - 1).astype(np.uint64)).astype(np.float64) * w.astype(np.float64).sum(-1)
    tok, near2 = _icdf(w, u, eps)
    ids = np.full((n, k + 1), -1, np.int64)
    for i in range(k):
        ids[:, i] = np.where(i < pos, draft_ids[:, i], -1)
    ids[rows, pos] = tok
    return ids, acc, pos, draws, near_any | near2


if __name__ == "__main__":
    z = [np.zeros(1, np.uint32)] * 4
    got = [int(x[0]) for x in philox4x32_10(z, z[:2])]
    assert got == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], [hex(g) for g in got]
    f = [np.full(1, 0xFFFFFFFF, np.uint32)] * 4
    assert [int(x[0]) for x in philox4x32_10(f, f[:2])] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    print("philox known answers ok")
