/* Fuzz target: model.safetensors.index.json of a folder with two small shards. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static char folder[64];

static void remove_folder(void) {
    (void)!us_fs_remove_tree(folder, NULL);
}

static void put(const char *name, us_str bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    require(f && fwrite(bytes.p, 1, bytes.n, f) == bytes.n && fclose(f) == 0);
}

static void put_shard(const char *name, const char *first, const char *second) {
    static const uint64_t shape[1] = {4};
    us_st_tensor t[2] = {{us_str_z(first), US_DTYPE_U8, 1, shape, 0, 4}, {us_str_z(second), US_DTYPE_U8, 1, shape, 4, 8}};
    us_buf b = {0};
    require(us_st_write_header(&b, t, 2, NULL, 0, NULL) == US_OK);
    us_buf_add(&b, "abcdefgh", 8);
    put(name, us_buf_view(&b));
    us_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!folder[0]) {
        const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(folder, sizeof folder, "%s/us-fuzz-index-XXXXXX", base);
        require(mkdtemp(folder) != NULL);
        atexit(remove_folder);
        put_shard("a.safetensors", "x", "y");
        put_shard("b.safetensors", "x", "z");
    }
    put("model.safetensors.index.json", (us_str){(const char *)data, size});
    uint64_t live = us_alloc_get_stats().live_blocks;
    us_checkpoint *c = NULL;
    us_err err = {0};
    us_status s = us_checkpoint_open(NULL, folder, 0, &c, &err);
    require(s == US_OK || (err.cls[0] && err.what[0]));
    if (s == US_OK)
        for (size_t i = 0; i < c->n_tensors; i++) {
            char raw[4];
            require(us_ck_read(c, &c->tensors[i], 0, raw, 4, &err) == US_OK);
        }
    us_checkpoint_free(c);
    require(us_alloc_get_stats().live_blocks == live);
    return 0;
}
