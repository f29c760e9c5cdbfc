"""NumPy float64 definitions, written from the papers without `attn`: loops over rows, no sharing.

Each takes one batch row: q [T, N, H], k [S, K, H], v [S, K, D] and seen [T, S] (bool).
"""

import numpy as np


def softmax(q, k, v, seen, bias=None, logit_cap=None, sinks=None, temperature=1.0, qk_norm=False):
    """out_i = sum_j softmax_j(q_i . k_j / (sqrt(H) temperature)) v_j over the seen j; a sink is one
    score more whose value is 0."""
    if qk_norm:
        q, k = (x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) for x in (q, k))
    (T, N, H), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head = n * K // N
        for i in range(T):
            js = np.nonzero(seen[i])[0]
            if len(js) == 0:
                continue
            s = k[js, head] @ q[i, n] / np.sqrt(H) / temperature
            if logit_cap is not None:
                s = logit_cap * np.tanh(s / logit_cap)
            if bias is not None:
                s = s + bias[n, i, js]
            sink = -np.inf if sinks is None else sinks[n]
            p, rest = np.exp(s - s.max()), np.exp(sink - s.max())
            out[i, n] = p @ v[js, head] / (p.sum() + rest)
    return out


def linear(q, k, v, seen, phi):
    """out_i = sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j)."""
    (T, N, _), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head = n * K // N
        for i in range(T):
            js = np.nonzero(seen[i])[0]
            a = np.array([phi(q[i, n]) @ phi(k[j, head]) for j in js])
            if a.sum() > 0:
                out[i, n] = a @ v[js, head] / a.sum()
    return out


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def positive_features(projection):
    """FAVOR+ on x / H^(1/4): exp(w . x - |x|^2 / 2) / sqrt(M)."""

    def phi(x):
        x = x / len(x) ** 0.25
        return np.exp(projection @ x - x @ x / 2) / np.sqrt(len(projection))

    return phi


def window(T, S, left, right):
    """seen[i, j] for i - left <= j <= i + right."""
    return np.array([[i - left <= j <= i + right for j in range(S)] for i in range(T)], bool)


def linformer(q, k, v, key_projection, value_projection, real):
    """softmax(q (E k)^T / sqrt(H)) (F v), the keys that are not `real` taken out first."""
    S, K = k.shape[:2]
    k, v = k * real[:, None, None], v * real[:, None, None]
    e, f = key_projection[:, :, :S], value_projection[:, :, :S]
    k = np.stack([e[h] @ k[:, h] for h in range(K)], 1)
    v = np.stack([f[h] @ v[:, h] for h in range(K)], 1)
    return softmax(q, k, v, np.full((len(q), len(k)), real.any()))


def differential(q, k, v, seen, vectors, lambda_init, bias=None):
    """softmax of the first halves less lambda times softmax of the second ones."""
    H = q.shape[-1] // 2
    a, b, c, d = vectors  # lambda_q1, lambda_k1, lambda_q2, lambda_k2
    amount = np.exp(a @ b) - np.exp(c @ d) + lambda_init
    first = softmax(q[..., :H], k[..., :H], v, seen, bias)
    return first - amount * softmax(q[..., H:], k[..., H:], v, seen, bias)


def talking_heads(q, k, v, seen, logit_mixing, weight_mixing, bias=None):
    """The paper's pseudocode, pair by pair: dots, a product over heads, softmax, another one."""
    (T, N, H), K, D = q.shape, k.shape[1], v.shape[2]
    key_head = [n * K // N for n in range(N)]
    out = np.zeros((T, N, D))
    for i in range(T):
        js = np.nonzero(seen[i])[0]
        if len(js) == 0:
            continue
        dots = np.array([[q[i, n] @ k[j, key_head[n]] for n in range(N)] for j in js])  # [S, N]
        logits = dots / np.sqrt(H) @ logit_mixing
        if bias is not None:
            logits = logits + bias[:, i, js].T
        weights = np.exp(logits - logits.max(0))
        weights = weights / weights.sum(0) @ weight_mixing
        for n in range(N):
            out[i, n] = weights[:, n] @ v[js, key_head[n]]
    return out


def latent(q, k, v, seen, key_up, value_up, bias=None):
    """DeepSeek-V2's equations 9 to 19, token by token: c is cut out of the projection of keys and
    values, normalised, and expanded to the keys and values of each head."""
    (S, K, H), (N, _, rest) = k.shape, key_up.shape
    keys, values = np.zeros((S, N, H)), np.zeros((S, N, v.shape[-1]))
    for j, n in np.ndindex(S, N):
        head = n * K // N
        c = np.concatenate([k[j, head, H - rest :], v[j, head]])
        c = c / np.sqrt(np.mean(c**2) + 1e-6)
        keys[j, n] = np.concatenate([k[j, head, : H - rest], c @ key_up[n]])
        values[j, n] = c @ value_up[n]
    return softmax(q, keys, values, seen, bias)


def additive(q, k, v, seen, w, u, a):
    """out_i = sum_j softmax_j(a . tanh(W q_i + U k_j)) v_j."""
    (T, N, _), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head = n * K // N
        for i in range(T):
            js = np.nonzero(seen[i])[0]
            s = [a[n] @ np.tanh(q[i, n] @ w[n] + k[j, head] @ u[head]) for j in js]
            p = np.exp(np.array(s) - max(s, default=0))
            if len(js):
                out[i, n] = p @ v[js, head] / p.sum()
    return out


def luong(q, k, v, seen, score, local, window, real, learned):
    """Equations 7 to 10 of the paper, query by query; `real` keys make its sentence length S."""
    (T, N, _), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head = n * K // N
        for i in range(T):
            h, align = q[i, n], []
            centre = i
            if local == "p":
                z = np.tanh(learned["position_projection"][n].T @ h) @ learned["position_vector"][n]
                centre = real / (1 + np.exp(-z))
            js = [
                j
                for j in range(len(k))
                if seen[i, j] and (local is None or centre - window <= j <= centre + window)
            ]
            for j in js:
                if score == "dot":
                    align.append(h @ k[j, head])
                elif score == "general":
                    align.append(h @ learned["score_projection"][n] @ k[j, head])
                else:
                    both = np.concatenate(
                        [learned["query_projection"][n], learned["key_projection"][head]]
                    )  # W_a [2H, A] on [h_t; h_s]
                    hidden = np.tanh(np.concatenate([h, k[j, head]]) @ both)
                    align.append(learned["score_vector"][n] @ hidden)
            if not js:
                continue
            p = np.exp(np.array(align) - max(align))
            p /= p.sum()
            if local == "p":
                sigma = window / 2
                p = p * np.exp(-((np.array(js) - centre) ** 2) / (2 * sigma**2))
            out[i, n] = p @ v[js, head]
    return out


def pointwise(q, k, v, seen, h):
    """out_i = sum_j h(q_i . k_j / sqrt(H)) v_j over the seen j."""
    (T, N, H), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head = n * K // N
        for i in range(T):
            for j in np.nonzero(seen[i])[0]:
                out[i, n] += h(q[i, n] @ k[j, head] / np.sqrt(H)) * v[j, head]
    return out


def synthesizer(q, v, seen, learned):
    """out_i = sum_j softmax_j(e_ij) v_j with e = W2 relu(W1 q_i + b1) + b2, or e = R."""
    (T, N, _), K, D = q.shape, v.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        for i in range(T):
            js = np.nonzero(seen[i])[0]
            if len(js) == 0:
                continue
            if "logits" in learned:
                e = learned["logits"][n, i]
            else:
                w1, b1, w2, b2 = (learned[name][n] for name in ("w1", "b1", "w2", "b2"))
                e = w2.T @ np.maximum(w1.T @ q[i, n] + b1, 0) + b2
            p = np.exp(e[js] - e[js].max())
            out[i, n] = p @ v[js, n * K // N] / p.sum()
    return out


def normalised(q, k, v, seen, weigh):
    """out_i = sum_j w_ij v_j / sum_j w_ij for w_ij = weigh(n, head, i, j), 0 for 0 / 0."""
    (T, N, _), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head = n * K // N
        for i in range(T):
            js = np.nonzero(seen[i])[0]
            w = np.array([weigh(n, head, i, j) for j in js])
            if len(js) and w.sum() != 0:
                out[i, n] = w @ v[js, head] / w.sum()
    return out


def gated_rfa(q, k, v, gate, phi):
    """S_t = g S_(t-1) + (1 - g) phi(k) v^T, z_t alike, out = phi(q) . S / phi(q) . z: causal."""
    (T, N, _), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    for n in range(N):
        head, S, z = n * K // N, 0.0, 0.0
        for t in range(T):
            g, key = gate[t, n], phi(k[t, head], head)
            S = g * S + (1 - g) * np.outer(key, v[t, head])
            z = g * z + (1 - g) * key
            row = phi(q[t, n], head)
            out[t, n] = row @ S / (row @ z)
    return out


def efficient(q, k, v, seen):
    """out_i = softmax(q_i) . (softmax_j(k)^T v), the second over the seen keys of each channel."""
    (T, N, _), K, D = q.shape, k.shape[1], v.shape[2]
    out = np.zeros((T, N, D))
    softmax = lambda x: np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0)
    for n in range(N):
        head = n * K // N
        for i in range(T):
            js = np.nonzero(seen[i])[0]
            if len(js):
                out[i, n] = softmax(q[i, n]) @ (softmax(k[js, head]).T @ v[js, head])
    return out
