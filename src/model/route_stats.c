/* See route_stats.h. */
#include "model/route_stats.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

void us_route_stats_free(us_route_stats *s) {
    for (size_t i = 0; s->layers && i < s->n_layers; i++) {
        us_free(s->layers[i].count);
        us_free(s->layers[i].pairs);
        us_free(s->layers[i].weight);
    }
    us_free(s->layers);
    us_free(s->choices);
    memset(s, 0, sizeof *s);
}

us_status us_route_stats_create(const us_engine *e, const us_structure *st, bool pairs, us_route_stats *out, us_err *err) {
    const us_recipe *r = us_engine_recipe(e);
    us_route_stats s = {.top_k = r->router.top_k};
    while (s.n_layers < st->n_blocks && !st->blocks[s.n_layers].mtp) s.n_layers++;
    if (!s.n_layers) return us_fail(err, US_E_REFUSED, "dense", "the model has no layer with experts");
    s.layers = us_calloc(s.n_layers, sizeof *s.layers);
    bool ok = s.layers != NULL;
    for (size_t i = 0; ok && i < s.n_layers; i++) {
        us_route_layer *l = &s.layers[i];
        size_t E = r->router.n_rows;
        *l = (us_route_layer){.layer = st->blocks[i].layer, .n_experts = (uint32_t)E, .margin_least = HUGE_VAL};
        l->count = us_calloc(E, sizeof *l->count);
        l->weight = us_calloc(E, sizeof *l->weight);
        if (pairs) l->pairs = us_calloc(E * E, sizeof *l->pairs);
        ok = l->count && l->weight && (!pairs || l->pairs);
    }
    if (!ok) {
        us_route_stats_free(&s);
        return us_fail_nomem(err, "routing statistics");
    }
    *out = s;
    return US_OK;
}

typedef struct collector {
    us_route_stats *s;
    const us_recipe *r;
    bool choices;
    size_t first; /* token number of the batch's first row */
    float *sorted;
} collector;

static double entropy_of(const float *z, size_t n) {
    float top = -INFINITY;
    for (size_t i = 0; i < n; i++) top = z[i] > top ? z[i] : top;
    double sum = 0, weighted = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)z[i] - (double)top, p = exp(d);
        sum += p;
        if (p > 0) weighted += p * d;
    }
    return log(sum) - weighted / sum;
}

/* The k-th largest less the next. */
static double margin_of(const float *z, size_t n, size_t k, float *best) {
    size_t have = 0;
    for (size_t i = 0; i < n; i++) { /* the k+1 largest, descending */
        size_t at = have;
        while (at && best[at - 1] < z[i]) at--;
        if (at > k) continue;
        size_t keep = have < k + 1 ? have : k;
        memmove(best + at + 1, best + at, (keep - at) * sizeof *best);
        best[at] = z[i];
        have = keep + 1;
    }
    return (double)best[k - 1] - (double)best[k];
}

static void collect(void *user, uint32_t layer, const uint32_t *experts, const float *weights, const float *logits, size_t rows, size_t k, size_t n_logits) {
    collector *c = user;
    size_t b = (size_t)c->r->layers[layer].block;
    us_route_layer *l = &c->s->layers[b];
    size_t E = l->n_experts;
    for (size_t t = 0; t < rows; t++) {
        const uint32_t *e = experts + t * k;
        for (size_t i = 0; i < k; i++) {
            l->count[e[i]]++;
            l->weight[e[i]] += (double)weights[t * k + i];
            for (size_t j = 0; l->pairs && j < i; j++) {
                l->pairs[e[i] * E + e[j]]++;
                l->pairs[e[j] * E + e[i]]++;
            }
            if (c->choices) c->s->choices[((c->first + t) * c->s->n_layers + b) * c->s->top_k + i] = (int32_t)e[i];
        }
        if (logits && n_logits > k) {
            double m = margin_of(logits + t * n_logits, n_logits, k, c->sorted);
            l->margin += m;
            if (m < l->margin_least) l->margin_least = m;
        }
        if (logits) l->entropy += entropy_of(logits + t * n_logits, n_logits);
    }
    l->tokens += rows;
}

static us_status run_batch(us_ctx *ctx, us_engine *e, us_segment *segs, size_t n, collector *c, us_err *err) {
    us_engine_taps taps = {.route = collect, .user = c};
    us_status s = us_ctx_check(ctx, err);
    for (size_t i = 0; s == US_OK && i < n; i++) s = us_seq_create(e, &segs[i].seq, err);
    if (s == US_OK) s = us_engine_run(e, segs, n, &taps, NULL, err);
    for (size_t i = 0; i < n; i++) {
        us_progress_add(ctx, segs[i].n);
        us_seq_free(segs[i].seq);
    }
    return s;
}

us_status us_route_stats_run(us_ctx *ctx, us_engine *e, const int64_t *const *texts, const size_t *n, size_t n_texts, size_t batch, bool choices, us_route_stats *s, us_err *err) {
    collector c = {s, us_engine_recipe(e), choices, s->tokens, NULL};
    us_segment *segs = us_calloc(n_texts + 1, sizeof *segs);
    c.sorted = us_calloc(c.r->router.top_k + 2, sizeof *c.sorted);
    us_status st = segs && c.sorted ? US_OK : us_fail_nomem(err, "routing statistics");
    for (size_t i = 0; st == US_OK && i < n_texts;) {
        size_t count = 0, tokens = 0;
        for (; i + count < n_texts && (!count || tokens + n[i + count] <= batch); count++) {
            segs[count] = (us_segment){NULL, texts[i + count], n[i + count], 0};
            tokens += n[i + count];
        }
        size_t row = s->n_layers * s->top_k;
        if (choices && !us_grow(&s->choices, &s->choices_cap, (s->tokens + tokens) * row, sizeof *s->choices)) st = us_fail_nomem(err, "keeping the choices");
        for (size_t k = s->tokens * row; st == US_OK && choices && k < (s->tokens + tokens) * row; k++) s->choices[k] = -1;
        c.first = s->tokens;
        if (st == US_OK) st = run_batch(ctx, e, segs, count, &c, err);
        s->tokens += tokens;
        i += count;
    }
    us_free(segs);
    us_free(c.sorted);
    return st;
}

double us_route_balance(const us_route_layer *l) {
    double sum = 0, h = 0;
    for (size_t e = 0; e < l->n_experts; e++) sum += (double)l->count[e];
    for (size_t e = 0; e < l->n_experts; e++)
        if (l->count[e]) h -= (double)l->count[e] / sum * log((double)l->count[e] / sum);
    return l->n_experts > 1 && sum > 0 ? h / log((double)l->n_experts) : 1;
}

double us_route_peak(const us_route_layer *l) {
    double sum = 0, most = 0;
    for (size_t e = 0; e < l->n_experts; e++) {
        sum += (double)l->count[e];
        most = fmax(most, (double)l->count[e]);
    }
    return sum > 0 ? most * l->n_experts / sum : 0;
}
