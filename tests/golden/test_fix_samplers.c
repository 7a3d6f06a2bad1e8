/* Sampling and log-probabilities against the recorded answers of other projects: every case of fixtures/rl/samplers and fixtures/rl/logits/logprobs.
 * Tolerances: fixtures/rl/README.md; where one is not from there, the reason stands beside it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/json.h"
#include "io/safetensors.h"
#include "model/sample.h"
#include "support/support.h"
#include "tensor/dtype.h"

/* One NAME.json with its NAME.safetensors. */
typedef struct book {
    us_json_doc json;
    us_file file;
    us_st_header header;
} book;

static bool book_open(book *b, const char *path) {
    us_err err = {0};
    memset(b, 0, sizeof *b);
    if (!test_exists(test_format("%s.json", path))) return false;
    assert_us_ok(us_json_doc_parse(&b->json, us_str_z(test_read(test_format("%s.json", path), NULL)), 0, &err), &err);
    assert_us_ok(us_file_open(test_format("%s.safetensors", path), &b->file, &err), &err);
    assert_us_ok(us_st_read(&b->file, 0, &b->header, &err), &err);
    return true;
}

static void book_close(book *b) {
    us_json_doc_free(&b->json);
    us_st_header_free(&b->header);
    us_file_close(&b->file);
}

static const char *text(const us_json_doc *d, us_json_ref r) {
    us_str s = us_json_string(d, r);
    return s.p ? test_format("%.*s", (int)s.n, s.p) : NULL;
}

/* All elements of a tensor as doubles; rows and cols (1 for a vector) may be NULL. Freed by the caller. */
static double *tensor(const book *b, const char *name, size_t *rows, size_t *cols) {
    for (size_t i = 0; i < b->header.n_tensors; i++) {
        const us_st_tensor *t = &b->header.tensors[i];
        if (!us_str_eqz(t->name, name)) continue;
        us_err err = {0};
        size_t n = (size_t)us_st_elements(t);
        char *raw = malloc((size_t)(t->end - t->begin) + 1);
        double *x = malloc(n * sizeof *x + 8);
        assert_us_ok(us_file_read(&b->file, b->header.data_start + t->begin, raw, (size_t)(t->end - t->begin), &err), &err);
        for (size_t k = 0; k < n; k++) {
            float f;
            int64_t l;
            if (t->dtype == US_DTYPE_F64) memcpy(&x[k], raw + 8 * k, 8);
            else if (t->dtype == US_DTYPE_F32) memcpy(&f, raw + 4 * k, 4), x[k] = (double)f;
            else if (t->dtype == US_DTYPE_I64) memcpy(&l, raw + 8 * k, 8), x[k] = (double)l;
            else if (t->dtype == US_DTYPE_U8) x[k] = (double)(unsigned char)raw[k];
            else fail_msg("tensor %s has an unexpected type", name);
        }
        free(raw);
        if (rows) *rows = (size_t)t->shape[0];
        if (cols) *cols = t->rank > 1 ? (size_t)t->shape[1] : 1;
        return x;
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

/* The tensor that an answer or an input of a case names, or NULL when the case has no such answer. */
static double *answer(const book *b, us_json_ref c, const char *name, size_t *rows, size_t *cols) {
    us_json_ref r = us_json_path(&b->json, c, test_format("outputs.%s", name));
    const char *tensor_name = text(&b->json, us_json_get(&b->json, r, "tensor"));
    return tensor_name ? tensor(b, tensor_name, rows, cols) : NULL;
}

static double *input(const book *b, us_json_ref c, const char *name, size_t *rows, size_t *cols) {
    const char *tensor_name = text(&b->json, us_json_path(&b->json, c, test_format("inputs.%s", name)));
    return tensor_name ? tensor(b, tensor_name, rows, cols) : NULL;
}

static bool near(double ours, double theirs, double tol) {
    if (isinf(theirs) || isinf(ours)) return ours == theirs;
    return fabs(ours - theirs) <= tol * (1 + fabs(theirs));
}

/* ---- samplers ---- */

typedef struct counts {
    int cases, rows, exact, ties, edges, refused, wrong;
    bool silent;
} counts;

static void wrong(counts *n, const char *what, size_t row, const char *detail) {
    n->wrong++;
    if (!n->silent) print_error("%s: row %zu: %s\n", what, row, detail);
}

static bool listed(const us_json_doc *d, us_json_ref c, const char *name, size_t row) {
    us_json_ref list = us_json_path(d, c, test_format("outputs.%s", name));
    uint64_t v;
    for (us_json_ref r = us_json_first(d, list); list != US_JSON_NO && r != US_JSON_NO; r = us_json_next(d, list, r))
        if (us_json_u64(d, r, &v) && v == row) return true;
    return false;
}

/* Settings of a case; an unknown one fails the test, so that none is left out unseen. */
static us_sampling settings_of(const book *b, us_json_ref c, us_logit_bias *bias) {
    const us_json_doc *d = &b->json;
    us_sampling o = US_SAMPLING_DEFAULTS;
    const char *name = text(d, us_json_get(d, c, "name"));
    o.order = strncmp(name, "vllm.", 5) == 0 ? US_ORDER_VLLM : US_ORDER_TRANSFORMERS;
    us_json_ref settings = us_json_get(d, c, "settings");
    for (us_json_ref k = us_json_first(d, settings); settings != US_JSON_NO && k != US_JSON_NO;) {
        const char *key = text(d, k);
        us_json_ref v = us_json_next(d, settings, k);
        double x = 0;
        if (strcmp(key, "logit_bias") == 0) {
            for (us_json_ref id = us_json_first(d, v); id != US_JSON_NO;) {
                us_json_ref value = us_json_next(d, v, id);
                assert_true(us_json_double(d, value, &x) && o.n_bias < 8);
                bias[o.n_bias++] = (us_logit_bias){(uint32_t)strtoul(text(d, id), NULL, 10), x};
                id = us_json_next(d, v, value);
            }
            o.bias = bias;
        } else {
            assert_true(us_json_double(d, v, &x));
            if (strcmp(key, "temperature") == 0) o.temperature = x;
            else if (strcmp(key, "top_k") == 0) o.top_k = (uint32_t)x;
            else if (strcmp(key, "top_p") == 0) o.top_p = x;
            else if (strcmp(key, "min_p") == 0) o.min_p = x;
            else if (strcmp(key, "typical_p") == 0) o.typical_p = x;
            else if (strcmp(key, "epsilon_cutoff") == 0) o.epsilon = x;
            else if (strcmp(key, "eta_cutoff") == 0) o.eta = x;
            else if (strcmp(key, "repetition_penalty") == 0) o.repetition = x;
            else if (strcmp(key, "frequency_penalty") == 0) o.frequency = x;
            else if (strcmp(key, "presence_penalty") == 0) o.presence = x;
            else fail_msg("%s: unknown setting %s", name, key);
        }
        k = us_json_next(d, settings, v);
    }
    return o;
}

/* -1 in `out` is padding: vLLM sees nothing there, the transformers cases saw id 0. */
static us_sample_past past_of(const double *prompt, size_t np, const double *out, size_t no, us_sample_order order, uint32_t *ids) {
    us_sample_past p = {.prompt = ids, .n_prompt = np, .output = ids + np};
    for (size_t i = 0; i < np; i++) ids[i] = (uint32_t)prompt[i];
    for (size_t i = 0; i < no; i++)
        if (out[i] >= 0 || order == US_ORDER_TRANSFORMERS) ids[np + p.n_output++] = out[i] < 0 ? 0 : (uint32_t)out[i];
    return p;
}

/*
 * Two masks that differ. A tie: equally many stay, and all tokens that differ have one value. An edge: both keep the largest values, and the numbers
 * differ by one token. u: processed logits without truncation.
 */
static bool is_tie(const double *u, const bool *a, const bool *b, size_t V, double tol) {
    double value = NAN;
    long more = 0;
    for (size_t i = 0; i < V; i++) {
        more += a[i] - b[i];
        if (a[i] == b[i]) continue;
        if (!isnan(value) && !near(u[i], value, tol)) return false;
        value = u[i];
    }
    return more == 0;
}

static bool is_edge(const double *u, const bool *a, const bool *b, size_t V) {
    long more = 0;
    for (size_t i = 0; i < V; i++) more += a[i] - b[i];
    if (labs(more) > 1) return false;
    for (size_t i = 0; i < V; i++)
        for (size_t k = 0; k < V; k++)
            if ((a[i] && !a[k] && u[i] < u[k]) || (b[i] && !b[k] && u[i] < u[k])) return false;
    return true;
}

/* What the library says about a row: processed logits, and the log-probability of every token by way of us_sample_next. */
static us_status run_row(us_sampler *s, const us_sampling *o, const us_sample_past *past, const double *x, size_t V, bool f32, double *processed, double *logp,
                         us_err *err) {
    float *x32 = malloc(2 * V * sizeof *x32);
    us_sample_top *top = malloc(V * sizeof *top);
    us_sampled r;
    for (size_t i = 0; i < V; i++) x32[i] = (float)x[i];
    us_status st = f32 ? us_sample_process_f32(s, o, past, x32, x32 + V, err) : us_sample_process(s, o, past, x, processed, err);
    for (size_t i = 0; f32 && st == US_OK && i < V; i++) processed[i] = (double)x32[V + i];
    if (st == US_OK)
        st = f32 ? us_sample_next(s, o, past, x32, (us_sample_key){1, 2, 3}, &r, top, V, err)
                 : us_sample_next_f64(s, o, past, x, (us_sample_key){1, 2, 3}, &r, top, V, err);
    if (st == US_OK) {
        assert_int_equal(r.n_top, V);
        for (size_t i = 0; i < V; i++) logp[top[i].id] = top[i].logp;
    }
    free(x32);
    free(top);
    return st;
}

static void check_row(const book *b, us_json_ref c, const char *name, size_t row, size_t V, const double *x, const double *ours, const double *our_logp,
                      const double *untruncated, const double *kept, const double *processed, const double *logp, double tol, counts *n) {
    const us_json_doc *d = &b->json;
    bool mine[512], theirs[512], same = true;
    assert_true(V <= 512);
    for (size_t i = 0; i < V; i++) {
        mine[i] = ours[i] > -HUGE_VAL;
        theirs[i] = kept ? kept[i] != 0 : processed[i] > -HUGE_VAL;
        same = same && mine[i] == theirs[i];
    }
    n->rows++;
    if (!same) {
        bool lists = us_json_path(d, c, "outputs.tie_rows") != US_JSON_NO;
        bool tie = is_tie(untruncated, mine, theirs, V, tol) && (!lists || listed(d, c, "tie_rows", row));
        bool edge = listed(d, c, "edge_rows", row) && is_edge(untruncated, mine, theirs, V);
        if (!tie && !edge) {
            wrong(n, name, row, "other tokens stay");
            return;
        }
        n->ties += tie;
        n->edges += !tie;
    } else n->exact++;
    const char *fault = NULL;
    for (size_t i = 0; i < V && !fault; i++) {
        if (mine[i] != theirs[i]) continue;
        if (kept && mine[i] && ours[i] != x[i]) fault = "a kept logit was changed";
        if (processed && !near(ours[i], processed[i], tol)) fault = test_format("token %zu: %.17g, should be %.17g", i, ours[i], processed[i]);
        if (logp && !near(our_logp[i], logp[i], tol)) fault = test_format("log-prob of token %zu: %.17g, should be %.17g", i, our_logp[i], logp[i]);
    }
    if (fault) wrong(n, name, row, fault);
}

static void check_sampler(const book *b, us_json_ref c, int force_order, counts *n) {
    us_err err = {0};
    us_logit_bias bias[8];
    const char *name = text(&b->json, us_json_get(&b->json, c, "name"));
    us_sampling o = settings_of(b, c, bias), plain;
    size_t rows, V, np, no, nn = strlen(name);
    bool f32 = nn > 4 && strcmp(name + nn - 4, ".f32") == 0, must_fail = us_json_get(&b->json, c, "error") != US_JSON_NO, failed = false;
    double *x = input(b, c, "logits", &rows, &V), *prompt = input(b, c, "prompt", NULL, &np), *out = input(b, c, "out", NULL, &no);
    double *kept = answer(b, c, "kept", NULL, NULL), *processed = answer(b, c, "processed", NULL, NULL), *logp = answer(b, c, "logp", NULL, NULL);
    double *ours = malloc(3 * V * sizeof *ours), *our_logp = ours + V, *untruncated = our_logp + V;
    uint32_t *ids = malloc((np + no) * sizeof *ids);
    us_sampler *s;
    assert_us_ok(us_sampler_create(V, &s, &err), &err);
    assert_true(must_fail || kept || processed);
    n->cases++;
    plain = o;
    plain.top_k = 0;
    plain.top_p = plain.typical_p = 1;
    plain.min_p = plain.epsilon = plain.eta = 0;
    for (size_t r = 0; r < rows; r++) {
        us_sample_past past = past_of(prompt + r * np, np, out + r * no, no, o.order, ids);
        us_sampling forced = o;
        if (force_order >= 0) forced.order = (us_sample_order)force_order;
        err = (us_err){0};
        us_status st = run_row(s, &forced, &past, x + r * V, V, f32, ours, our_logp, &err);
        if (must_fail) {
            failed = failed || (st != US_OK && err.cls[0]);
            continue;
        }
        assert_us_ok(st, &err);
        assert_us_ok(us_sample_process(s, &plain, &past, x + r * V, untruncated, &err), &err);
        check_row(b, c, name, r, V, x + r * V, ours, our_logp, untruncated, kept ? kept + r * V : NULL, processed ? processed + r * V : NULL,
                  logp ? logp + r * V : NULL, f32 ? 1e-5 : 1e-12, n);
    }
    if (must_fail) {
        n->refused += failed;
        if (!failed) wrong(n, name, 0, "must be refused");
    }
    us_sampler_free(s);
    free(x), free(prompt), free(out), free(kept), free(processed), free(logp), free(ours), free(ids);
}

static counts check_samplers(int force_order) {
    counts n = {.silent = force_order >= 0};
    book b;
    const char *folder = test_fixtures("rl/samplers");
    if (!folder || !book_open(&b, test_format("%s/samplers", folder))) return n;
    us_json_ref cases = us_json_get(&b.json, 0, "cases");
    for (us_json_ref c = us_json_first(&b.json, cases); c != US_JSON_NO; c = us_json_next(&b.json, cases, c)) check_sampler(&b, c, force_order, &n);
    book_close(&b);
    return n;
}

static void processors_and_chains_equal_their_sources(void **state) {
    (void)state;
    counts n = check_samplers(-1);
    print_message("%d cases, %d rows: %d masks equal, %d tie at the boundary, %d meet it by rounding; %d refused\n", n.cases, n.rows, n.exact, n.ties, n.edges,
                  n.refused);
    assert_int_equal(n.wrong, 0);
    assert_true(n.cases == 0 || n.exact > n.ties + n.edges);
}

/* A test of the test: one project's order does not pass for the other's. */
static void the_orders_are_told_apart(void **state) {
    (void)state;
    if (check_samplers(-1).cases == 0) return;
    assert_true(check_samplers(US_ORDER_TRANSFORMERS).wrong > 0);
    assert_true(check_samplers(US_ORDER_VLLM).wrong > 0);
}

/* ---- log-probabilities ---- */

typedef struct rows_of {
    size_t rows, V;
    double *x;       /* logits as the source had them: rounded to its type */
    uint32_t *label;
    uint8_t *keep;   /* or NULL */
    double T;
    double eps;      /* 0: float64 all through; else the rounding unit of the source's arithmetic */
} rows_of;

static rows_of rows_of_case(const book *b, us_json_ref c, const char *name) {
    const us_json_doc *d = &b->json;
    rows_of in = {.T = 1};
    us_json_ref T = us_json_path(d, c, "settings.temperature");
    const char *dtype = text(d, us_json_path(d, c, "settings.logits_dtype"));
    double *label = input(b, c, "labels", NULL, NULL), *keep = input(b, c, "log_prob_keep_mask", NULL, NULL);
    in.x = input(b, c, "logits", &in.rows, &in.V);
    if (T != US_JSON_NO) assert_true(us_json_double(d, T, &in.T));
    if (dtype && strcmp(dtype, "bfloat16") == 0) in.eps = 0x1p-8;
    else if (dtype || strncmp(name, "slime", 5) == 0 || strstr(name, "chunked")) in.eps = 0x1p-24; /* float32 whatever comes in */
    for (size_t i = 0; in.eps > 0 && i < in.rows * in.V; i++)
        in.x[i] = in.eps > 0x1p-10 ? (double)us_bf16_to_f32(us_f32_to_bf16((float)in.x[i])) : (double)(float)in.x[i];
    in.label = label ? calloc(in.rows, sizeof *in.label) : NULL;
    in.keep = keep ? calloc(in.rows * in.V, 1) : NULL;
    for (size_t i = 0; label && i < in.rows; i++) in.label[i] = (uint32_t)label[i];
    for (size_t i = 0; keep && i < in.rows * in.V; i++) in.keep[i] = keep[i] != 0;
    free(label);
    free(keep);
    return in;
}

/* README: 1e-12, rows with large offsets 1e-11, slime (float32) 1e-6. Not there: a bf16 source rounds twice to 8 bits (the difference to the maximum, then the
 * answer), 2^-9 each; and where a float32 source subtracts logits of 1e4, its error has that size times a few roundings of 2^-24. */
static double tolerance(const rows_of *in, size_t row) {
    double large = 0;
    for (size_t i = 0; i < in->V; i++)
        if (isfinite(in->x[row * in->V + i])) large = fmax(large, fabs(in->x[row * in->V + i]) / in->T);
    if (in->eps == 0) return large > 1e3 ? 1e-11 : 1e-12;
    return in->eps > 0x1p-10 ? 0x1p-8 : large > 1e3 ? 4 * in->eps * large : 1e-6;
}

/* The plain formulas, 0 log 0 = 0, for rows where the source answers NaN because of logits of -inf. which: 'l' log-prob, 'e' entropy. */
static void plain(const rows_of *in, size_t row, char which, double *value, double *grad) {
    size_t V = in->V;
    const double *x = in->x + row * V;
    long double max = -HUGE_VALL, sum = 0, h = 0, lp[512] = {0};
    assert_true(V <= 512);
    for (size_t i = 0; i < V; i++) {
        bool in_set = which == 'e' || !in->keep || in->keep[row * V + i] || i == in->label[row];
        lp[i] = in_set ? (long double)x[i] / (long double)in->T : -HUGE_VALL;
        max = lp[i] > max ? lp[i] : max;
    }
    for (size_t i = 0; i < V; i++) sum += expl(lp[i] - max);
    for (size_t i = 0; i < V; i++) {
        lp[i] -= max + logl(sum);
        if (expl(lp[i]) > 0) h -= expl(lp[i]) * lp[i];
    }
    *value = which == 'e' ? (double)h : (double)lp[in->label[row]];
    for (size_t i = 0; i < V; i++) {
        long double p = expl(lp[i]), T = (long double)in->T;
        grad[i] = (double)(which == 'l' ? ((long double)(i == in->label[row]) - p) / T : p > 0 ? -p * (lp[i] + h) / T : 0);
    }
}

static void compare_rows(const rows_of *in, const char *name, char which, const double *ours, const double *theirs, size_t width, counts *n) {
    double value, grad[512];
    for (size_t r = 0; theirs && r < in->rows; r++) {
        bool undefined = false, good = true;
        double tol = tolerance(in, r), worst = 0;
        for (size_t i = 0; i < width; i++) undefined = undefined || isnan(theirs[r * width + i]);
        plain(in, r, which, &value, grad);
        for (size_t i = 0; i < width; i++) {
            double a = ours[r * width + i], want = undefined ? (width == 1 ? value : grad[i]) : theirs[r * width + i];
            good = good && near(a, want, tol);
            if (isfinite(a) && isfinite(want)) worst = fmax(worst, fabs(a - want));
        }
        n->rows++;
        n->exact += !undefined;
        n->edges += undefined;
        if (!good) wrong(n, test_format("%s (%c, %zu)", name, which, width), r, test_format("differs by %.3g, allowed %.3g", worst, tol));
    }
}

static void check_logprobs(const book *b, us_json_ref c, counts *n) {
    us_err err = {0};
    const char *name = text(&b->json, us_json_get(&b->json, c, "name"));
    rows_of in = rows_of_case(b, c, name);
    size_t all = in.rows * in.V;
    double *logp = malloc(2 * (in.rows + all) * sizeof *logp), *entropy = logp + in.rows, *grad_logp = entropy + in.rows, *grad_entropy = grad_logp + all;
    us_logprobs_in q = {.rows = in.rows, .V = in.V, .f64 = in.x, .targets = in.label, .keep = in.keep, .temperature = in.T};
    us_logprobs_out out = {logp, entropy, grad_logp, grad_entropy};
    assert_us_ok(us_logprobs(NULL, &q, &out, &err), &err);
    bool entropies = strstr(name, "entropy") != NULL;
    struct {
        const char *answer;
        char which;
        const double *ours;
        size_t width;
    } answers[] = {
        {"out", entropies ? 'e' : 'l', entropies ? entropy : logp, 1}, {"grad_out", entropies ? 'e' : 'l', entropies ? grad_entropy : grad_logp, in.V},
        {"log_prob", 'l', logp, 1},       {"grad_log_prob", 'l', grad_logp, in.V},
        {"entropy", 'e', entropy, 1},     {"grad_entropy", 'e', grad_entropy, in.V},
    };
    int before = n->rows;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        double *theirs = answer(b, c, answers[i].answer, NULL, NULL);
        compare_rows(&in, name, answers[i].which, answers[i].ours, theirs, answers[i].width, n);
        free(theirs);
    }
    assert_true(n->rows > before); /* a case of which nothing was compared */
    n->cases++;
    free(in.x), free(in.label), free(in.keep), free(logp);
}

static void check_kl(const book *b, us_json_ref c, counts *n) {
    us_err err = {0};
    size_t rows, V;
    double *p = input(b, c, "logits", &rows, &V), *q = input(b, c, "other", NULL, NULL), *kl = malloc(2 * rows * sizeof *kl), *logp = kl + rows;
    double *labels = tensor(b, "labels", NULL, NULL), mean = 0, perplexity;
    uint32_t *targets = calloc(rows, sizeof *targets);
    for (size_t i = 0; i < rows; i++) targets[i] = (uint32_t)labels[i];
    static const char *const names[] = {"forward", "reverse", "cross_entropy"};
    us_logprobs_in in = {.rows = rows, .V = V, .f64 = p, .targets = targets, .temperature = 1};
    us_logprobs_out out = {.logp = logp};
    assert_us_ok(us_logprobs(NULL, &in, &out, &err), &err);
    for (int k = 0; k < 3; k++) {
        double *theirs = answer(b, c, names[k], NULL, NULL);
        assert_non_null(theirs);
        if (k < 2) assert_us_ok(us_logits_kl(rows, V, k ? q : p, k ? p : q, kl, &err), &err);
        for (size_t r = 0; r < rows; r++, n->rows++, n->exact++) {
            double ours = k < 2 ? kl[r] : -logp[r];
            if (!near(ours, theirs[r], r == 6 ? 1e-11 : 1e-12)) wrong(n, names[k], r, test_format("%.17g, should be %.17g", ours, theirs[r]));
        }
        free(theirs);
    }
    static const int of[] = {0, 1, 2, 4};
    for (int i = 0; i < 4; i++) mean -= logp[of[i]] / 4;
    assert_true(us_json_double(&b->json, us_json_path(&b->json, c, "outputs.perplexity"), &perplexity));
    if (!near(exp(mean), perplexity, 1e-12)) wrong(n, "perplexity", 0, "differs");
    n->cases++;
    free(p), free(q), free(kl), free(labels), free(targets);
}

static void log_probabilities_and_gradients_equal_their_sources(void **state) {
    (void)state;
    counts n = {0};
    book b;
    const char *folder = test_fixtures("rl/logits");
    if (!folder || !book_open(&b, test_format("%s/logprobs", folder))) return;
    us_json_ref cases = us_json_get(&b.json, 0, "cases");
    for (us_json_ref c = us_json_first(&b.json, cases); c != US_JSON_NO; c = us_json_next(&b.json, cases, c)) {
        if (us_json_path(&b.json, c, "outputs.forward") != US_JSON_NO) check_kl(&b, c, &n);
        else check_logprobs(&b, c, &n);
    }
    book_close(&b);
    print_message("%d cases, %d rows of answers; in %d more the source gives NaN for logits of -inf: held against the plain formula\n", n.cases, n.exact,
                  n.edges);
    assert_int_equal(n.wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_and_chains_equal_their_sources),
        cmocka_unit_test(the_orders_are_told_apart),
        cmocka_unit_test(log_probabilities_and_gradients_equal_their_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
