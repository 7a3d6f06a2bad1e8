/* Fuzz target: the safetensors header. The first two bytes choose the size of the data; the rest is the header's text.
 */
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

/* What is accepted can be written again and reads the same. */
static void write_again(const us_st_header *h) {
    us_buf out = {0};
    us_err err = {0};
    us_st_header again;
    uint64_t at = 0, bytes, elements;
    for (size_t i = 0; i < h->n_tensors; i++) {
        const us_st_tensor *t = &h->tensors[i];
        require(us_st_bytes(t->dtype, t->rank, t->shape, &elements, &bytes) && bytes == t->end - t->begin &&
                elements == us_st_elements(t));
        require(t->end <= h->data_size);
    }
    us_st_tensor *in_order = us_calloc(h->n_tensors + 1, sizeof *in_order);
    if (!in_order) return;
    for (size_t i = 0; i < h->n_tensors; i++) {
        in_order[i] = h->tensors[i];
        in_order[i].begin = at;
        at += h->tensors[i].end - h->tensors[i].begin;
        in_order[i].end = at;
    }
    require(at == h->data_size);
    require(us_st_write_header(&out, in_order, h->n_tensors, h->meta, h->n_meta, &err) == US_OK);
    us_str text = us_str_sub(us_buf_view(&out), 8, out.n);
    require(us_st_parse(text, out.n + at, 0, &again, &err) == US_OK);
    require(again.n_tensors == h->n_tensors && again.data_size == at);
    for (size_t i = 0; i < h->n_tensors; i++) require(us_str_eq(again.tensors[i].name, h->tensors[i].name));
    us_st_header_free(&again);
    us_free(in_order);
    us_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_str text = {(const char *)data + 2, size - 2};
    uint64_t file_size = 8 + text.n + ((uint64_t)data[0] | (uint64_t)data[1] << 8);
    us_st_header h;
    us_err err = {0};
    us_status s = us_st_parse(text, file_size, 0, &h, &err);
    require(s == US_OK || (err.cls[0] && err.what[0]));
    if (s == US_OK) {
        write_again(&h);
        us_st_header_free(&h);
    }
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}
