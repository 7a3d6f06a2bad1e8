/**
 * model.safetensors.index.json of a proxy (rule 9): a new weight_map, total_size and total_parameters made true, everything else as it was.
 * Tests: fixtures/checkpoints, case P17.
 */
#include <stdlib.h>

#include "proxy/plan_internal.h"

static uint64_t source_elements(const us_checkpoint *ck) {
    uint64_t sum = 0;
    for (size_t i = 0; i < ck->n_tensors; i++) {
        uint64_t n = 1;
        for (int k = 0; k < ck->tensors[i].rank; k++) n *= ck->tensors[i].shape[k];
        sum += n;
    }
    return sum;
}

static void member(us_buf *b, const char *indent, bool *first, us_str raw_key, us_str raw_value) {
    us_buf_z(b, *first ? "\n" : ",\n");
    us_buf_z(b, indent);
    us_buf_str(b, raw_key);
    us_buf_z(b, ": ");
    us_buf_str(b, raw_value);
    *first = false;
}

static void metadata(const us_plan *p, us_json_ref meta, us_buf *b) {
    const us_json_doc *d = &p->s->ck->index;
    bool first = true, size_seen = false;
    us_buf number = {0};
    us_buf_c(b, '{');
    for (us_json_ref k = us_json_first(d, meta); k != US_JSON_NO;) {
        us_json_ref v = us_json_next(d, meta, k);
        us_str key = us_json_string(d, k);
        us_buf_clear(&number);
        if (us_str_eqz(key, "total_size")) {
            size_seen = true;
            us_buf_printf(&number, "%llu", (unsigned long long)p->total_bytes);
            member(b, "    ", &first, us_json_raw(d, k), us_buf_view(&number));
        } else if (us_str_eqz(key, "total_parameters")) {
            uint64_t have;
            if (us_json_u64(d, v, &have) && have == source_elements(p->s->ck)) {
                us_buf_printf(&number, "%llu", (unsigned long long)p->total_elements);
                member(b, "    ", &first, us_json_raw(d, k), us_buf_view(&number));
            }
        } else {
            member(b, "    ", &first, us_json_raw(d, k), us_json_raw(d, v));
        }
        k = us_json_next(d, meta, v);
    }
    if (!size_seen) {
        us_buf_clear(&number);
        us_buf_printf(&number, "%llu", (unsigned long long)p->total_bytes);
        member(b, "    ", &first, US_LIT("\"total_size\""), us_buf_view(&number));
    }
    us_buf_z(b, first ? "}" : "\n  }");
    b->failed |= number.failed;
    us_buf_free(&number);
}

typedef struct named {
    us_str name;
    uint32_t shard;
} named;

static int cmp_named(const void *a, const void *b) {
    return us_str_cmp(((const named *)a)->name, ((const named *)b)->name);
}

static us_status weight_map(const us_plan *p, us_buf *b, us_err *err) {
    named *n = us_malloc((p->n_tensors ? p->n_tensors : 1) * sizeof *n);
    if (!n) return us_fail_nomem(err, "writing the index");
    for (size_t i = 0; i < p->n_tensors; i++) n[i] = (named){p->tensors[i].name, p->tensors[i].shard};
    qsort(n, p->n_tensors, sizeof *n, cmp_named);
    us_buf_c(b, '{');
    for (size_t i = 0; i < p->n_tensors; i++) {
        us_buf_z(b, i ? ",\n    " : "\n    ");
        us_buf_json(b, n[i].name);
        us_buf_z(b, ": ");
        us_buf_json(b, us_str_z(p->shards[n[i].shard].name));
    }
    us_buf_z(b, "\n  }");
    us_free(n);
    return US_OK;
}

us_status us__plan_index(us_ctx *ctx, us_plan *p, us_err *err) {
    const us_json_doc *d = &p->s->ck->index;
    us_buf *b = &p->index, part = {0};
    bool first = true, meta_seen = false;
    us_status st = US_OK;
    (void)ctx;
    if (!d->n_nodes) return US_OK;
    us_buf_c(b, '{');
    for (us_json_ref k = us_json_first(d, 0); k != US_JSON_NO && st == US_OK;) {
        us_json_ref v = us_json_next(d, 0, k);
        us_str key = us_json_string(d, k);
        us_buf_clear(&part);
        if (us_str_eqz(key, "weight_map")) {
            if (!meta_seen && us_json_get(d, 0, "metadata") == US_JSON_NO) {
                metadata(p, US_JSON_NO, &part);
                member(b, "  ", &first, US_LIT("\"metadata\""), us_buf_view(&part));
                us_buf_clear(&part);
            }
            st = weight_map(p, &part, err);
            member(b, "  ", &first, us_json_raw(d, k), us_buf_view(&part));
        } else if (us_str_eqz(key, "metadata")) {
            meta_seen = true;
            metadata(p, us_json_type_of(d, v) == US_JSON_OBJECT ? v : US_JSON_NO, &part);
            member(b, "  ", &first, us_json_raw(d, k), us_buf_view(&part));
        } else {
            member(b, "  ", &first, us_json_raw(d, k), us_json_raw(d, v));
        }
        k = us_json_next(d, 0, v);
    }
    us_buf_z(b, "\n}\n");
    b->failed |= part.failed;
    us_buf_free(&part);
    if (st == US_OK) st = us_buf_status(b, err, "writing the index");
    return st;
}
