/* Rotary position tables. */
#define _DEFAULT_SOURCE
#include "model/rope.h"

#include <math.h>
#include <string.h>

static double number(const us_json_doc *d, us_json_ref o, const char *key, double def) {
    double v;
    return us_json_double(d, us_json_get(d, o, key), &v) ? v : def;
}

static bool read_kind(us_str name, us_rope_kind *out) {
    static const struct {
        const char *name;
        us_rope_kind kind;
    } kinds[] = {{"default", US_ROPE_DEFAULT}, {"linear", US_ROPE_LINEAR},     {"dynamic", US_ROPE_DYNAMIC}, {"llama3", US_ROPE_LLAMA3},
                 {"yarn", US_ROPE_YARN},       {"deepseek_yarn", US_ROPE_YARN}, {"longrope", US_ROPE_LONGROPE}, {"su", US_ROPE_LONGROPE},
                 {"mrope", US_ROPE_DEFAULT}}; /* text only: the three position streams are equal */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (us_str_eqz(name, kinds[i].name)) return *out = kinds[i].kind, true;
    return false;
}

static us_status read_short_factors(const us_json_doc *d, us_json_ref params, us_rope *r, us_err *err) {
    us_json_ref list = us_json_get(d, params, "short_factor");
    if (us_json_count(d, list) != r->dims / 2)
        return us_fail(err, US_E_FORMAT, "mismatch", "short_factor of longrope has %u entries, the rotary width wants %u", us_json_count(d, list), r->dims / 2);
    uint32_t i = 0;
    for (us_json_ref e = us_json_first(d, list); e != US_JSON_NO; e = us_json_next(d, list, e))
        if (!us_json_double(d, e, &r->short_factor[i++])) return us_fail(err, US_E_FORMAT, "type", "short_factor of longrope must hold numbers");
    r->short_mscale = number(d, params, "short_mscale", 1);
    r->long_mscale = number(d, params, "long_mscale", 1);
    return US_OK;
}

us_status us_rope_read(const us_json_doc *d, us_json_ref params, double theta, uint32_t dims, double max_positions, us_rope *r, us_err *err) {
    memset(r, 0, sizeof *r);
    if (dims > US_ROPE_DIMS_MAX || dims % 2) return us_fail(err, US_E_FORMAT, "range", "a rotary width of %u is not an even number up to %d", dims, US_ROPE_DIMS_MAX);
    us_str kind = us_json_string(d, us_json_get(d, params, "rope_type"));
    if (!kind.p) kind = us_json_string(d, us_json_get(d, params, "type"));
    r->dims = dims;
    if (kind.p && !read_kind(kind, &r->kind)) return us_fail(err, US_E_UNSUPPORTED, "rope", "the rope scaling \"%.*s\" is not known", US_STR_ARG(kind));
    r->theta = number(d, params, "rope_theta", theta);
    r->max_positions = max_positions;
    r->original_positions = number(d, params, "original_max_position_embeddings", 0);
    r->factor = number(d, params, "factor", 0);
    if (r->factor == 0) r->factor = r->kind == US_ROPE_YARN && r->original_positions > 0 ? max_positions / r->original_positions : 1;
    r->low_freq = number(d, params, "low_freq_factor", 1);
    r->high_freq = number(d, params, "high_freq_factor", 4);
    r->beta_fast = number(d, params, "beta_fast", 32);
    r->beta_slow = number(d, params, "beta_slow", 1);
    r->attention_factor = number(d, params, "attention_factor", 0);
    r->mscale = number(d, params, "mscale", 0);
    r->mscale_all_dim = number(d, params, "mscale_all_dim", 0);
    bool truncate;
    r->truncate = us_json_bool(d, us_json_get(d, params, "truncate"), &truncate) ? truncate : true;
    if (!(r->theta > 0) || !(r->factor > 0)) return us_fail(err, US_E_FORMAT, "range", "rope_theta and factor must be positive");
    if (r->kind == US_ROPE_YARN && r->original_positions <= 0) r->original_positions = max_positions;
    if (r->kind == US_ROPE_LLAMA3 && r->original_positions <= 0)
        return us_fail(err, US_E_FORMAT, "missing", "llama3 rope needs original_max_position_embeddings");
    return r->kind == US_ROPE_LONGROPE ? read_short_factors(d, params, r, err) : US_OK;
}

double us_rope_mscale(double factor, double a) {
    return factor <= 1 ? 1 : 0.1 * a * log(factor) + 1;
}

static void yarn(const us_rope *r, double *f, double *multiplier) {
    double n = r->dims, pi = acos(-1.0);
    double lo = n * log(r->original_positions / (2 * pi * r->beta_fast)) / (2 * log(r->theta));
    double hi = n * log(r->original_positions / (2 * pi * r->beta_slow)) / (2 * log(r->theta));
    if (r->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    if (lo < 0) lo = 0;
    if (hi > n - 1) hi = n - 1;
    if (hi == lo) hi += 0.001;
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        double ramp = ((double)i - lo) / (hi - lo);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        f[i] = f[i] * (1 - ramp) + f[i] / r->factor * ramp;
    }
    if (r->attention_factor > 0) *multiplier = r->attention_factor;
    else if (r->mscale != 0 && r->mscale_all_dim != 0) *multiplier = us_rope_mscale(r->factor, r->mscale) / us_rope_mscale(r->factor, r->mscale_all_dim);
    else *multiplier = us_rope_mscale(r->factor, 1);
}

static double llama3(const us_rope *r, double f) {
    double wave = 2 * acos(-1.0) / f, m0 = r->original_positions;
    if (wave > m0 / r->low_freq) return f / r->factor;
    if (wave < m0 / r->high_freq) return f;
    double s = (m0 / wave - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - s) * f / r->factor + s * f;
}

void us_rope_table(const us_rope *r, uint64_t length, double *inv_freq, double *multiplier) {
    double theta = r->theta, n = r->dims;
    *multiplier = 1;
    if (r->kind == US_ROPE_DYNAMIC) {
        double m = r->max_positions, t = (double)length > m ? (double)length : m;
        theta *= pow(r->factor * t / m - (r->factor - 1), n / (n - 2));
    }
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        inv_freq[i] = pow(theta, -2.0 * i / n);
        if (r->kind == US_ROPE_LINEAR) inv_freq[i] /= r->factor;
        if (r->kind == US_ROPE_LLAMA3) inv_freq[i] = llama3(r, inv_freq[i]);
        if (r->kind == US_ROPE_LONGROPE) inv_freq[i] /= r->short_factor[i];
    }
    if (r->kind == US_ROPE_YARN) yarn(r, inv_freq, multiplier);
    if (r->kind == US_ROPE_LONGROPE) *multiplier = (double)length > r->original_positions ? r->long_mscale : r->short_mscale;
}

bool us_rope_grows(const us_rope *r) {
    return r->kind == US_ROPE_DYNAMIC || r->kind == US_ROPE_LONGROPE;
}
