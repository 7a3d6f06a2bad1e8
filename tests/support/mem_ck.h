/**
 * Checkpoints that exist only as a config text and a table of tensor names and shapes, for tests of the structure.
 * Include the cmocka block before this header.
 */
#ifndef US_TESTS_MEM_CK_H
#define US_TESTS_MEM_CK_H

#include "model/structure.h"
#include "support/support.h"

typedef struct mem_ck {
    us_checkpoint ck;
    size_t cap;
    us_structure *st; /* after mem_ck_resolve, if that succeeded */
} mem_ck;

/** Zero-initialise, then add tensors in any order. name is copied. */
void mem_ck_add(mem_ck *m, const char *name, us_dtype dtype, int rank, const uint64_t *shape);
/** A tensor of `rank` dimensions of which `axis` has length n (axis < 0: none); the others have lengths that no expert count of these tests has. */
void mem_ck_add_axis(mem_ck *m, const char *name, int rank, int axis, uint64_t n);
/** Smallest config.json of a family: one layer of E experts unless more is given. more: further members, e.g. ",\"n_group\":2", or "". */
const char *mem_ck_config(const us_family *f, const char *model_type, unsigned layers, unsigned E, unsigned k, const char *more);
/** Parse the config, sort the tensors, resolve. */
us_status mem_ck_resolve(mem_ck *m, const char *config, us_err *err);
/** Role of a tensor by its name; fails the test when there is none. */
const us_role *mem_ck_role(const mem_ck *m, const char *name);
void mem_ck_free(mem_ck *m);

/** The pattern with "layers.L." and "experts.N." numbered. */
const char *mem_ck_name(const char *pattern, unsigned layer, unsigned expert);

#endif
