/* Double-precision reference operators but the router's: see ref.h. */
#include "kernels/ref.h"

#include <math.h>

#define NEG_INF (-(double)INFINITY)

void us_ref_linear(const double *x, const double *w, const double *bias, size_t T, size_t K, size_t N, double *y) {
    for (size_t t = 0; t < T; t++)
        for (size_t n = 0; n < N; n++) {
            double s = 0;
            for (size_t i = 0; i < K; i++) s += x[t * K + i] * w[n * K + i];
            y[t * N + n] = s + (bias ? bias[n] : 0);
        }
}

void us_ref_rmsnorm(const double *x, const double *w, double plus, double eps, size_t T, size_t n, double *y) {
    for (size_t t = 0; t < T; t++) {
        const double *row = x + t * n;
        double s = 0;
        for (size_t i = 0; i < n; i++) s += row[i] * row[i];
        double r = 1 / sqrt(s / (double)n + eps);
        for (size_t i = 0; i < n; i++) y[t * n + i] = row[i] * r * (w ? plus + w[i] : 1);
    }
}

void us_ref_layernorm(const double *x, const double *w, const double *b, double eps, size_t T, size_t n, double *y) {
    for (size_t t = 0; t < T; t++) {
        const double *row = x + t * n;
        double mean = 0, var = 0;
        for (size_t i = 0; i < n; i++) mean += row[i];
        mean /= (double)n;
        for (size_t i = 0; i < n; i++) var += (row[i] - mean) * (row[i] - mean);
        double r = 1 / sqrt(var / (double)n + eps);
        for (size_t i = 0; i < n; i++) y[t * n + i] = (row[i] - mean) * r * w[i] + (b ? b[i] : 0);
    }
}

void us_ref_l2norm(double *x, double eps, size_t T, size_t n) {
    for (size_t t = 0; t < T; t++) {
        double s = eps;
        for (size_t i = 0; i < n; i++) s += x[t * n + i] * x[t * n + i];
        s = 1 / sqrt(s);
        for (size_t i = 0; i < n; i++) x[t * n + i] *= s;
    }
}

double us_ref_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

double us_ref_silu(double x) {
    return x / (1 + exp(-x));
}

double us_ref_softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

void us_ref_softmax(double *x, size_t n) {
    double max = NEG_INF, sum = 0;
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - max);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

void us_ref_rope(double *x, size_t T, size_t heads, size_t width, size_t from, size_t dims, const double *inv_freq, double factor, bool pair,
                 double sign, const int64_t *positions) {
    size_t half = dims / 2;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < half; i++) {
            double angle = (double)positions[t] * inv_freq[i];
            double c = cos(angle) * factor, s = sin(angle) * factor * sign;
            size_t a = pair ? 2 * i : i, b = pair ? 2 * i + 1 : i + half;
            for (size_t h = 0; h < heads; h++) {
                double *row = x + (t * heads + h) * width + from;
                double u = row[a], v = row[b];
                row[a] = u * c - v * s;
                row[b] = v * c + u * s;
            }
        }
}

static bool visible(const us_ref_mask *m, size_t T, size_t i, size_t j) {
    if (m->window && i - j >= m->window) return false;
    if (m->chunk && i / m->chunk != j / m->chunk) return false;
    return !m->allow || m->allow[i * T + j];
}

void us_ref_attention(const double *q, const double *k, const double *v, size_t T, size_t H, size_t G, size_t Dk, size_t Dv, double scale,
                      const us_ref_mask *mask, const double *sinks, double *scratch, double *out) {
    for (size_t h = 0; h < H; h++) {
        size_t g = h / (H / G);
        for (size_t i = 0; i < T; i++) {
            double max = sinks ? sinks[h] : NEG_INF, sum = 0;
            for (size_t j = 0; j <= i; j++) {
                double s = NEG_INF;
                if (visible(mask, T, i, j)) {
                    s = 0;
                    for (size_t c = 0; c < Dk; c++) s += q[(i * H + h) * Dk + c] * k[(j * G + g) * Dk + c];
                    s *= scale;
                }
                scratch[j] = s;
                max = s > max ? s : max;
            }
            if (sinks) sum = exp(sinks[h] - max);
            double *o = out + (i * H + h) * Dv;
            for (size_t c = 0; c < Dv; c++) o[c] = 0;
            for (size_t j = 0; j <= i; j++) {
                double p = exp(scratch[j] - max);
                sum += p;
                for (size_t c = 0; c < Dv; c++) o[c] += p * v[(j * G + g) * Dv + c];
            }
            for (size_t c = 0; c < Dv; c++) o[c] /= sum;
        }
    }
}

void us_ref_conv1d(const double *x, const double *w, const double *bias, size_t T, size_t C, size_t K, bool silu, double *y) {
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < C; c++) {
            double s = bias ? bias[c] : 0;
            for (size_t i = 0; i < K; i++)
                if (t + i + 1 >= K) s += w[c * K + i] * x[(t + i + 1 - K) * C + c];
            y[t * C + c] = silu ? us_ref_silu(s) : s;
        }
}

/* One token of one head: decay, correct towards v, read with q. */
static void delta_step(const double *q, const double *k, const double *v, const double *g, bool per_channel, double beta, size_t Dk, size_t Dv, double *S,
                       double *o) {
    for (size_t i = 0; i < Dk; i++) {
        double decay = exp(per_channel ? g[i] : g[0]);
        for (size_t j = 0; j < Dv; j++) S[i * Dv + j] *= decay;
    }
    for (size_t j = 0; j < Dv; j++) {
        double seen = 0;
        for (size_t i = 0; i < Dk; i++) seen += S[i * Dv + j] * k[i];
        double delta = beta * (v[j] - seen);
        o[j] = 0;
        for (size_t i = 0; i < Dk; i++) {
            S[i * Dv + j] += k[i] * delta;
            o[j] += S[i * Dv + j] * q[i];
        }
    }
}

void us_ref_delta_rule(const double *q, const double *k, const double *v, const double *g, bool per_channel, const double *beta, size_t T, size_t Hk,
                       size_t Hv, size_t Dk, size_t Dv, double *state, double *out) {
    for (size_t h = 0; h < Hv; h++) {
        size_t hk = h / (Hv / Hk);
        for (size_t i = 0; i < Dk * Dv; i++) state[i] = 0;
        for (size_t t = 0; t < T; t++) {
            size_t at = t * Hv + h;
            delta_step(q + (t * Hk + hk) * Dk, k + (t * Hk + hk) * Dk, v + at * Dv, g + (per_channel ? at * Dk : at), per_channel, beta[at], Dk, Dv, state,
                       out + at * Dv);
        }
    }
}

void us_ref_mamba2(const double *x, const double *Bm, const double *Cm, const double *dt, const double *A, const double *D, size_t T, size_t H, size_t P,
                   size_t G, size_t N, double *state, double *out) {
    for (size_t h = 0; h < H; h++) {
        size_t g = h * G / H;
        for (size_t i = 0; i < P * N; i++) state[i] = 0;
        for (size_t t = 0; t < T; t++) {
            double d = dt[t * H + h], decay = exp(d * A[h]);
            const double *b = Bm + (t * G + g) * N, *c = Cm + (t * G + g) * N;
            for (size_t p = 0; p < P; p++) {
                double xv = x[(t * H + h) * P + p], y = D[h] * xv;
                for (size_t n = 0; n < N; n++) {
                    state[p * N + n] = decay * state[p * N + n] + d * b[n] * xv;
                    y += c[n] * state[p * N + n];
                }
                out[(t * H + h) * P + p] = y;
            }
        }
    }
}

void us_ref_topk(const double *x, size_t n, size_t k, uint32_t *index) {
    for (size_t r = 0; r < k; r++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++) {
            bool taken = false;
            for (size_t p = 0; p < r; p++) taken |= index[p] == i;
            if (!taken && (best == n || x[i] > x[best] || isnan(x[best]))) best = i;
        }
        index[r] = (uint32_t)best;
    }
}
