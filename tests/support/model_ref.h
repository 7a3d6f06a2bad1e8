/* The reference answers of fixtures/models: tensors of ref.safetensors as doubles, comparison with messages, a model folder under either config. */
#ifndef US_TESTS_MODEL_REF_H
#define US_TESTS_MODEL_REF_H

#include <stdbool.h>
#include <stddef.h>

#include "io/safetensors.h"
#include "model/structure.h"

typedef struct ref_file {
    us_file file;
    us_st_header header;
} ref_file;

void ref_open(ref_file *f, const char *folder);
void ref_close(ref_file *f);
const us_st_tensor *ref_find(const ref_file *f, const char *name);
/** All elements as doubles, or NULL when the reference has no such tensor. Freed by the caller. */
double *ref_values(const ref_file *f, const char *name, size_t *n);
/** A number of ref.json; `missing` when it is not there or null. */
double ref_number(const char *folder, const char *key, double missing);
double ref_largest(const double *x, size_t n);

/** Comparison of one model: counts and says what is off. */
typedef struct ref_job {
    const ref_file *ref;
    const char *what;       /* family and spelling, for messages */
    size_t b, T;            /* sequence at hand of input_ids [B,T] */
    double tolerance;       /* relative, for layer tensors */
    int wrong, compared;
} ref_job;

void ref_compare(ref_job *j, const char *name, const double *ours, const double *theirs, size_t n, double bound);
/** A layer tensor "layer.N.WHAT" against sequence j->b; silently nothing where the reference has none. */
void ref_compare_layer(ref_job *j, uint32_t layer, const char *what, const double *x, size_t rows, size_t cols);
void ref_compare_route(ref_job *j, uint32_t layer, const uint32_t *experts, const double *weights, size_t rows, size_t k);

/** A model of fixtures/models opened under one of its configs. */
typedef struct ref_model {
    const char *dir;
    us_ctx *ctx;
    us_checkpoint *ck;
    us_structure *st;
} ref_model;
us_status ref_model_open(ref_model *m, const char *folder, const char *config, int threads, us_err *err);
void ref_model_close(ref_model *m);
/** Call fn(folder, name, config) for every model and both spellings (US_ONLY=name: that one); returns the number of calls. */
int ref_each_model(void (*fn)(void *user, const char *folder, const char *name, const char *config), void *user);

#endif
