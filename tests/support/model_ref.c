/* See model_ref.h. */
#include "support/model_ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "io/json.h"
#include "support/support.h"

void ref_open(ref_file *f, const char *folder) {
    us_err err = {0};
    assert_us_ok(us_file_open(test_format("%s/ref.safetensors", folder), &f->file, &err), &err);
    assert_us_ok(us_st_read(&f->file, 0, &f->header, &err), &err);
}

void ref_close(ref_file *f) {
    us_st_header_free(&f->header);
    us_file_close(&f->file);
}

const us_st_tensor *ref_find(const ref_file *f, const char *name) {
    for (size_t i = 0; i < f->header.n_tensors; i++)
        if (us_str_eqz(f->header.tensors[i].name, name)) return &f->header.tensors[i];
    return NULL;
}

double *ref_values(const ref_file *f, const char *name, size_t *n) {
    const us_st_tensor *t = ref_find(f, name);
    if (!t) return NULL;
    us_err err = {0};
    *n = (size_t)us_st_elements(t);
    char *raw = malloc((size_t)(t->end - t->begin) + 1);
    float *f32 = malloc(*n * 4 + 4);
    double *x = malloc(*n * 8 + 8);
    assert_us_ok(us_file_read(&f->file, f->header.data_start + t->begin, raw, (size_t)(t->end - t->begin), &err), &err);
    if (t->dtype == US_DTYPE_F64) memcpy(x, raw, *n * 8);
    else {
        assert_true(us_to_f32(t->dtype, raw, *n, f32));
        for (size_t i = 0; i < *n; i++) x[i] = (double)f32[i];
    }
    free(raw);
    free(f32);
    return x;
}

double ref_number(const char *folder, const char *key, double missing) {
    us_json_doc d;
    us_err err = {0};
    double v = missing;
    assert_us_ok(us_json_doc_parse(&d, us_str_z(test_read(test_format("%s/ref.json", folder), NULL)), 0, &err), &err);
    us_json_double(&d, us_json_get(&d, 0, key), &v);
    us_json_doc_free(&d);
    return v;
}

double ref_largest(const double *x, size_t n) {
    double m = 0;
    for (size_t i = 0; i < n; i++) m = fabs(x[i]) > m ? fabs(x[i]) : m;
    return m;
}

void ref_compare(ref_job *j, const char *name, const double *ours, const double *theirs, size_t n, double bound) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs(ours[i] - theirs[i]);
        if (!(d <= worst)) worst = d;
    }
    j->compared++;
    if (worst <= bound) return;
    j->wrong++;
    print_error("%s: %s: difference %.3g, allowed %.3g\n", j->what, name, worst, bound);
}

void ref_compare_layer(ref_job *j, uint32_t l, const char *what, const double *x, size_t rows, size_t cols) {
    char name[64];
    size_t n;
    snprintf(name, sizeof name, "layer.%u.%s", l, what);
    double *ref = ref_values(j->ref, name, &n);
    if (!ref) return;
    ref_compare(j, name, x, ref + j->b * rows * cols, rows * cols, j->tolerance * ref_largest(ref, n));
    free(ref);
}

void ref_compare_route(ref_job *j, uint32_t l, const uint32_t *experts, const double *weights, size_t rows, size_t k) {
    char name[64];
    size_t n;
    snprintf(name, sizeof name, "layer.%u.experts", l);
    double *ref = ref_values(j->ref, name, &n);
    if (ref) {
        int differ = 0;
        for (size_t i = 0; i < rows * k; i++) differ += (double)experts[i] != ref[j->b * rows * k + i];
        j->compared++;
        if (differ) {
            j->wrong++;
            print_error("%s: %s: %d choices differ\n", j->what, name, differ);
        }
        free(ref);
    }
    snprintf(name, sizeof name, "layer.%u.weights", l);
    ref = ref_values(j->ref, name, &n);
    if (ref) ref_compare(j, name, weights, ref + j->b * rows * k, rows * k, j->tolerance * ref_largest(ref, n));
    free(ref);
}

us_status ref_model_open(ref_model *m, const char *folder, const char *config, int threads, us_err *err) {
    size_t n;
    memset(m, 0, sizeof *m);
    m->dir = test_temp_dir();
    const char *bytes = test_read(test_format("%s/model.safetensors", folder), &n);
    test_write(test_format("%s/model.safetensors", m->dir), bytes, n);
    test_write_text(test_format("%s/config.json", m->dir), test_read(test_format("%s/%s", folder, config), NULL));
    us_status s = us_ctx_create(threads, 0, &m->ctx, err);
    if (s == US_OK) s = us_checkpoint_open(m->ctx, m->dir, 0, &m->ck, err);
    if (s == US_OK) s = us_structure_resolve(m->ctx, m->ck, &m->st, err);
    return s;
}

void ref_model_close(ref_model *m) {
    us_structure_free(m->st);
    us_checkpoint_free(m->ck);
    us_ctx_free(m->ctx);
    test_remove_tree(m->dir);
}

int ref_each_model(void (*fn)(void *user, const char *folder, const char *name, const char *config), void *user) {
    static const char *const configs[] = {"config.json", "config.published.json"};
    const char *only = getenv("US_ONLY");
    int models = 0;
    for (const char *const *folder = test_folders("models", "ref.safetensors"); *folder; folder++) {
        if (only && strcmp(only, test_name(*folder)) != 0) continue;
        for (int c = 0; c < 2; c++)
            if (test_exists(test_format("%s/%s", *folder, configs[c]))) fn(user, *folder, test_name(*folder), configs[c]), models++;
    }
    return models;
}
